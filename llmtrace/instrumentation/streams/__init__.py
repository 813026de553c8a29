"""How is a stream timed, whatever it is made of, and however it ends?"""
