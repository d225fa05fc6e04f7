"""``python -m aioredlock2``."""

from aioredlock2.cli import main

if __name__ == "__main__":
    main()
