//! Image layers: the difference between two trees, as a tar file that depends only on the two trees.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, Metadata};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tar::{Builder, EntryType, Header};

/// The extended attribute for the capabilities of a program, which is the only one that images need.
const CAPABILITY: &str = "security.capability";

/// Writes the layer that turns `lower` into `upper`, or all of `upper` without a lower tree.
pub fn write_difference(lower: Option<&Path>, upper: &Path, output: &Path) -> Result<()> {
    let below = lower.map(list).transpose()?.unwrap_or_default();
    let above = list(upper)?;
    let mut layer = Layer::create(output)?;
    let changed: BTreeSet<&Path> = above
        .iter()
        .filter(|(path, entry)| !below.get(*path).is_some_and(|old| same(old, entry)))
        .map(|(path, _)| path.as_path())
        .collect();
    // A directory may be included only as the parent of its entries in the tar file.
    let mut named = BTreeSet::new();
    for path in &changed {
        named.extend(path.ancestors().filter(|path| !path.as_os_str().is_empty()));
    }
    let mut gone: BTreeSet<&Path> = below
        .keys()
        .map(PathBuf::as_path)
        .filter(|path| !above.contains_key(*path))
        .collect();
    // Removing a directory also removes its contents.
    gone = gone
        .iter()
        .copied()
        .filter(|path| !path.ancestors().skip(1).any(|parent| gone.contains(parent)))
        .collect();
    for path in &named {
        if let Some(entry) = above.get(*path) {
            layer.add(path, entry)?;
        }
    }
    for path in gone {
        let name = path
            .file_name()
            .context("the tree has no name")?
            .to_string_lossy()
            .into_owned();
        layer.add_empty(&path.with_file_name(format!(".wh.{name}")))?;
    }
    layer.finish()
}

/// Writes a layer with single files, each as an executable owned by root.
pub fn write_programs(programs: &[(&str, &Path)], output: &Path) -> Result<()> {
    let mut layer = Layer::create(output)?;
    let mut programs: Vec<(&Path, &Path)> = programs
        .iter()
        .map(|(target, source)| (Path::new(target.trim_start_matches('/')), *source))
        .collect();
    programs.sort();
    for (target, source) in programs {
        let size = fs::metadata(source)
            .with_context(|| format!("failed to read {}", source.display()))?
            .len();
        let mut header = header(EntryType::Regular, 0o755, 0, 0);
        header.set_size(size);
        layer
            .tar
            .append_data(&mut header, target, BufReader::new(File::open(source)?))?;
    }
    layer.finish()
}

/// One path of a tree.
#[derive(Debug)]
struct Entry {
    real: PathBuf,
    metadata: Metadata,
    capability: Option<Vec<u8>>,
}

fn list(tree: &Path) -> Result<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let real = tree.join(&directory);
        for entry in fs::read_dir(&real).with_context(|| format!("failed to read {}", real.display()))? {
            let entry = entry?;
            let (path, real) = (directory.join(entry.file_name()), entry.path());
            let metadata = fs::symlink_metadata(&real)?;
            if metadata.is_dir() {
                waiting.push(path.clone());
            }
            let capability = if metadata.is_file() {
                capability(&real)?
            } else {
                None
            };
            found.insert(
                path,
                Entry {
                    real,
                    metadata,
                    capability,
                },
            );
        }
    }
    Ok(found)
}

fn capability(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; 64];
    match rustix::fs::lgetxattr(path, CAPABILITY, value.as_mut_slice()) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("failed to read the attributes of {}", path.display()))
        }
    }
}

/// Whether two entries are the same in an image, ignoring times.
fn same(old: &Entry, new: &Entry) -> bool {
    let (a, b) = (&old.metadata, &new.metadata);
    if a.mode() != b.mode() || a.uid() != b.uid() || a.gid() != b.gid() || old.capability != new.capability {
        return false;
    }
    if a.is_symlink() {
        return matches!((fs::read_link(&old.real), fs::read_link(&new.real)), (Ok(old), Ok(new)) if old == new);
    }
    !a.is_file() || (a.len() == b.len() && same_content(&old.real, &new.real).unwrap_or(false))
}

fn same_content(old: &Path, new: &Path) -> std::io::Result<bool> {
    let (mut old, mut new) = (File::open(old)?, File::open(new)?);
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let length = old.read(&mut left)?;
        if length == 0 {
            return Ok(true);
        }
        let (Some(left), Some(right)) = (left.get(..length), right.get_mut(..length)) else {
            return Ok(false);
        };
        new.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}

struct Layer {
    tar: Builder<BufWriter<File>>,
    /// The first name of each file with several hard links.
    links: HashMap<(u64, u64), PathBuf>,
}

impl Layer {
    fn create(output: &Path) -> Result<Self> {
        let file = File::create(output).with_context(|| format!("failed to write {}", output.display()))?;
        Ok(Self {
            tar: Builder::new(BufWriter::with_capacity(1 << 20, file)),
            links: HashMap::new(),
        })
    }

    fn add(&mut self, path: &Path, entry: &Entry) -> Result<()> {
        let metadata = &entry.metadata;
        let kind = metadata.file_type();
        let header = |kind| {
            header(
                kind,
                metadata.mode() & 0o7777,
                metadata.uid().into(),
                metadata.gid().into(),
            )
        };
        if kind.is_dir() {
            self.tar
                .append_data(&mut header(EntryType::Directory), path, std::io::empty())?;
        } else if kind.is_symlink() {
            self.tar
                .append_link(&mut header(EntryType::Symlink), path, fs::read_link(&entry.real)?)?;
        } else if kind.is_file() {
            if metadata.nlink() > 1 {
                let first = self
                    .links
                    .entry((metadata.dev(), metadata.ino()))
                    .or_insert_with(|| path.to_owned());
                if first != path {
                    self.tar.append_link(&mut header(EntryType::Link), path, first)?;
                    return Ok(());
                }
            }
            if let Some(capability) = &entry.capability {
                let key = format!("SCHILY.xattr.{CAPABILITY}");
                self.tar
                    .append_pax_extensions([(key.as_str(), capability.as_slice())])?;
            }
            let mut header = header(EntryType::Regular);
            header.set_size(metadata.len());
            self.tar
                .append_data(&mut header, path, BufReader::new(File::open(&entry.real)?))?;
        } else if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
            bail!(
                "{} is a special file, which is not allowed in an image",
                entry.real.display()
            );
        }
        Ok(())
    }

    fn add_empty(&mut self, path: &Path) -> Result<()> {
        Ok(self.tar.append_data(
            &mut header(EntryType::Regular, 0o644, 0, 0),
            path,
            std::io::empty(),
        )?)
    }

    fn finish(self) -> Result<()> {
        Ok(self.tar.into_inner()?.flush()?)
    }
}

fn header(kind: EntryType, mode: u32, uid: u64, gid: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(uid);
    header.set_gid(gid);
    header.set_mtime(0);
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(layer: &Path) -> Vec<(String, EntryType)> {
        tar::Archive::new(File::open(layer).unwrap())
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (
                    entry.path().unwrap().to_string_lossy().into_owned(),
                    entry.header().entry_type(),
                )
            })
            .collect()
    }

    #[test]
    fn a_layer_holds_what_changed_and_what_went_away() {
        let work = tempfile::tempdir().unwrap();
        let (lower, upper) = (work.path().join("lower"), work.path().join("upper"));
        for tree in [&lower, &upper] {
            fs::create_dir_all(tree.join("etc/kept")).unwrap();
            fs::write(tree.join("etc/same"), "same").unwrap();
            symlink("same", tree.join("etc/link")).unwrap();
        }
        fs::create_dir_all(lower.join("old/deep")).unwrap();
        fs::write(lower.join("etc/text"), "before").unwrap();
        fs::write(upper.join("etc/text"), "behind").unwrap();
        fs::write(lower.join("etc/mode"), "").unwrap();
        fs::write(upper.join("etc/mode"), "").unwrap();
        fs::set_permissions(upper.join("etc/mode"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(upper.join("etc/zero"), "0").unwrap();
        fs::hard_link(upper.join("etc/zero"), upper.join("etc/zero2")).unwrap();
        let layer = work.path().join("layer.tar");
        write_difference(Some(&lower), &upper, &layer).unwrap();
        assert_eq!(
            names(&layer),
            [
                ("etc".to_owned(), EntryType::Directory),
                ("etc/mode".to_owned(), EntryType::Regular),
                ("etc/text".to_owned(), EntryType::Regular),
                ("etc/zero".to_owned(), EntryType::Regular),
                ("etc/zero2".to_owned(), EntryType::Link),
                (".wh.old".to_owned(), EntryType::Regular),
            ]
        );
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes_whenever_it_was_made() {
        let work = tempfile::tempdir().unwrap();
        let mut layers = Vec::new();
        for name in ["a", "b"] {
            let tree = work.path().join(name);
            fs::create_dir_all(tree.join("usr/bin")).unwrap();
            // The creation order must not matter.
            let mut files = ["x", "y", "z"];
            if name == "b" {
                files.reverse();
            }
            for file in files {
                fs::write(tree.join("usr/bin").join(file), file).unwrap();
            }
            let layer = work.path().join(format!("{name}.tar"));
            write_difference(None, &tree, &layer).unwrap();
            layers.push(fs::read(layer).unwrap());
        }
        assert_eq!(layers[0], layers[1]);
    }
}
