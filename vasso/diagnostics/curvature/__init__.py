"""The Hessian and Gauss-Newton matrices: products, eigenvalues, trace and density."""
