//! The controllers, a folder each.
