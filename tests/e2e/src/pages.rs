//! Runs the `sh` blocks of documentation pages that a comment marks, in order, as a reader would.
//!
//! | comment before the block | where it runs |
//! |---|---|
//! | `<!-- test -->` | in the reader's shell, at the root of a checkout |
//! | `<!-- test: anna -->` | on the quick start's login node, as its user |
//! | `<!-- test: root -->` | on the same node, as root |
//! | `<!-- test: way in -->` | nowhere: it is the login command, which the two above replace |
//!
//! One shell runs all blocks of a page, so that variables set in one block are available in the next.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use testbed::Cluster;

/// How long a page may take, in seconds.
const LIMIT: &str = "480";

/// A block of a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line number of its first command.
    pub line: usize,
    /// Where it runs, according to the comment before it. None without such a comment.
    pub place: Option<Place>,
    /// The commands.
    pub code: String,
}

/// Where a block runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the reader's shell.
    Here,
    /// On the login node, as this user.
    Login(&'static str),
    /// The command that opens a shell on the login node.
    WayIn,
}

/// Returns the `sh` blocks of a page.
pub fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut found = Vec::new();
    let mut place = None;
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let word = line.trim();
        if let Some(comment) = word
            .strip_prefix("<!-- test")
            .and_then(|rest| rest.strip_suffix("-->"))
        {
            place = Some(match comment.trim() {
                "" => Place::Here,
                ": anna" => Place::Login("anna"),
                ": root" => Place::Login("root"),
                ": way in" => Place::WayIn,
                other => bail!("line {}: nobody knows what {other:?} means", number + 1),
            });
        } else if let Some(language) = word.strip_prefix("```") {
            let mut code = String::new();
            for (_, line) in lines.by_ref() {
                if line.trim() == "```" {
                    break;
                }
                code.push_str(line.get(indent..).unwrap_or_default());
                code.push('\n');
            }
            if language == "sh" {
                found.push(Block {
                    line: number + 2,
                    place: place.take(),
                    code,
                });
            } else {
                ensure!(
                    place.take().is_none(),
                    "line {}: only sh blocks are run",
                    number + 1
                );
            }
        } else if !word.is_empty() {
            place = None;
        }
    }
    Ok(found)
}

/// The environment of a reader: a checkout, and kubectl, helm and `cargo xtask` configured for one cluster.
#[derive(Debug)]
pub struct Reader {
    directory: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Reader {
    /// Creates the environment for a cluster.
    pub fn of(cluster: &Cluster, name: &str, xtask: &Command) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()?;
        for part in ["charts", "examples", "docs"] {
            std::os::unix::fs::symlink(repository.join(part), directory.path().join(part))?;
        }
        let tools = directory.path().join("bin");
        std::fs::create_dir(&tools)?;
        for (tool, program) in [("kubectl", cluster.kubectl()), ("helm", cluster.helm())] {
            std::os::unix::fs::symlink(program.get_program(), tools.join(tool))?;
        }
        // The pages use the default cluster name; the script adds the name of the test's cluster.
        let cargo = format!(
            "#!/bin/sh\nshift\ntask=$1\nshift\ncase \" $* \" in *\" --name \"*) exec {0} \"$task\" \"$@\";; esac\nexec {0} \"$task\" --name {name} \"$@\"\n",
            xtask.get_program().to_string_lossy()
        );
        std::fs::write(tools.join("cargo"), cargo)?;
        std::fs::set_permissions(
            tools.join("cargo"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        Ok(Self {
            directory,
            kubeconfig: cluster.layout().kubeconfig(),
        })
    }

    /// Runs blocks and returns their standard output.
    pub fn run(&self, blocks: &[Block]) -> Result<String> {
        let mut script = String::from("set -euo pipefail\n");
        for block in blocks {
            let mark = format!("echo '== line {}'\n", block.line);
            match block.place {
                Some(Place::Here) => script.extend([mark.as_str(), &block.code]),
                Some(Place::Login(user)) => {
                    // An argument, because srun would consume the rest of a script on standard input.
                    let shell = format!(
                        "kubectl --namespace slurm exec deployment/slurm-login-users -- su --login {user} --command \"$(cat <<'END OF BLOCK'\nset -e\n{}END OF BLOCK\n)\"\n",
                        block.code
                    );
                    script.extend([mark.as_str(), &shell]);
                }
                Some(Place::WayIn) | None => {}
            }
        }
        let file = self.directory.path().join("page.sh");
        std::fs::write(&file, script)?;
        let path = std::env::var("PATH").context("PATH is not set")?;
        let output = Command::new("timeout")
            .args([LIMIT, "bash"])
            .arg(&file)
            .current_dir(self.directory.path())
            .env("PATH", format!("{}/bin:{path}", self.directory.path().display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "{}\n{printed}\n--- and on standard error:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(printed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_what_marks_them() -> Result<()> {
        let page = "# A page\n\n<!-- test -->\n```sh\none\n```\n\n```sh\ntwo\n```\n<!-- test: anna -->\n\n```sh\nthree\n```\n```yaml\nfour: 4\n```\n";
        let found = blocks(page)?;
        let places: Vec<Option<Place>> = found.iter().map(|block| block.place).collect();
        assert_eq!(places, [Some(Place::Here), None, Some(Place::Login("anna"))]);
        assert_eq!(found[0].code, "one\n");
        assert_eq!(found[0].line, 5);
        Ok(())
    }

    #[test]
    fn a_mark_that_nobody_knows_or_that_marks_no_commands_is_refused() {
        assert!(blocks("<!-- test: bob -->\n```sh\n```\n").is_err());
        assert!(blocks("<!-- test -->\n```yaml\n```\n").is_err());
    }
}
