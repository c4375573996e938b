//! The certificate that the server shows: from a mounted directory, or made by ourselves and kept in a Secret.

pub mod directory;
mod inject;
pub mod keeper;
mod material;
mod plan;
pub mod tls;

pub use material::{Material, Serving};
pub use plan::Lifetimes;
