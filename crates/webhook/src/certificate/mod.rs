//! The serving certificate: from a mounted directory, or created by the webhook and stored in a Secret.

pub mod directory;
mod inject;
pub mod keeper;
mod material;
mod plan;
pub mod tls;

pub use material::{Material, Serving};
pub use plan::Lifetimes;
