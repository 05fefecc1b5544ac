"""`python -m dayzero`"""

from dayzero.cli import main

main()
