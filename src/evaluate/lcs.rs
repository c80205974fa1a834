//! Pure. The longest common subsequence of two sequences of names, bit-parallel, with one prescribed reconstruction.
