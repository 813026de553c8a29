"""How are turns of agents and their tools marked?"""
