"""Reading weights without running code, and fitting them into models; needs torch alone."""
