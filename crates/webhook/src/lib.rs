//! The admission server, a file per kind.
