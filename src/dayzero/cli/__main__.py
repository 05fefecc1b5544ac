"""`python -m dayzero.cli`"""

from . import main

main()
