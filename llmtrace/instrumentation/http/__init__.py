"""How are HTTP requests timed, and read where no SDK does?"""
