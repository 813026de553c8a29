"""What do headers tell of gateways, caches and servers?"""
