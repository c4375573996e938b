//! Images that contain a single program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::containerfile::{Copy, Stage};
use super::{COREDNS, Image, Workshop, oci};
use crate::cache::Cache;
use crate::progress::Progress;

/// The charts do not allow root.
const NOBODY: &str = "65532:65532";

/// The image of a `CoreDNS` program.
pub fn coredns(cache: &Cache, program: &Path) -> Result<Image> {
    let stage = Stage::parse(include_str!("../../../../images/coredns/Containerfile"))?;
    let workshop = Workshop {
        cache,
        progress: &Progress::new(false),
        recipes: Path::new(""),
    };
    let programs = BTreeMap::from([("coredns", program)]);
    let image = workshop.assemble("coredns", COREDNS, &stage, &programs)?;
    workshop
        .archive(&[image])?
        .pop()
        .context("the archive of one image is empty")
}

/// Images of one program, each with a different first argument: pairs of a name and that argument.
pub fn of_program(cache: &Cache, program: &Path, images: &[(String, &str)]) -> Result<PathBuf> {
    let workshop = Workshop {
        cache,
        progress: &Progress::new(false),
        recipes: Path::new(""),
    };
    let programs = BTreeMap::from([("program", program)]);
    let assemble = |(name, argument): &(String, &str)| {
        let target = "/program".to_owned();
        let stage = Stage {
            entrypoint: vec![target.clone(), (*argument).to_owned()],
            user: Some(NOBODY.to_owned()),
            copies: vec![Copy {
                from: "program".to_owned(),
                target,
            }],
            ..Stage::default()
        };
        workshop.assemble(name, name, &stage, &programs)
    };
    let images: Vec<oci::Image> = images.iter().map(assemble).collect::<Result<_>>()?;
    let image = workshop.archive(&images)?.pop();
    Ok(image.context("the archive contains no images")?.archive)
}
