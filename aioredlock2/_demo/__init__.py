"""The demo: worker processes contend for one resource while servers and holders are killed.

    pure      record   lines of the record file: who entered and left its critical section, and when
              history  lines -> sections
              verdict  sections -> overlaps, waits, gaps
              plan     which fault comes next, so that a quorum of the nodes always stays whole
              scene    what there is to draw
    drawing   view     the live view;  report: the table and the JSON object at the end
    doing     worker   one contending process;  crew: all of them
              chaos    carries out the plan;  monitor: looks at the nodes
              stage    puts it all on, and takes it down again
              command  the command line

Everything here uses the library as any other program would: by its public API.
"""
