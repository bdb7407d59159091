"""`python -m pyoco_client`."""

from pyoco_client import main

main()
