# Aliases. do.py does the work and needs no make.
.PHONY: demo test check run
demo test check run:
	python3 do.py $@ $(ARGS)
