//! Parser for the last stage of a Containerfile, so that both build methods share one definition of an image's process.
//!
//! Only the instructions in our Containerfiles are supported. Other instructions are errors, because ignoring them would
//! make the two build methods produce different images.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// The last stage of a Containerfile.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Files from other stages, in order.
    pub copies: Vec<Copy>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// The program.
    pub entrypoint: Vec<String>,
    /// Its default arguments.
    pub cmd: Vec<String>,
    /// `uid:gid`.
    pub user: Option<String>,
    /// Exposed ports, with the protocol.
    pub ports: Vec<String>,
    /// Working directory.
    pub workdir: Option<String>,
    /// Labels.
    pub labels: Vec<(String, String)>,
}

/// `COPY --from=STAGE SOURCE TARGET`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The source stage: `tree`, or the name of a program.
    pub from: String,
    /// The target path.
    pub target: String,
}

impl Stage {
    /// Parses a Containerfile.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("invalid file {}", path.display()))
    }

    /// Parses the text of a Containerfile.
    pub fn parse(text: &str) -> Result<Self> {
        let joined = text.replace("\\\n", " ");
        let lines: Vec<&str> = joined
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        let last = lines
            .iter()
            .rposition(|line| line.starts_with("FROM "))
            .context("no FROM instruction found")?;
        let mut stage = Self::default();
        for (at, line) in lines.iter().enumerate().skip(last) {
            let (instruction, rest) = line
                .split_once(' ')
                .with_context(|| format!("cannot parse `{line}`"))?;
            let rest = rest.trim();
            match instruction {
                "FROM" => ensure!(
                    at == last && rest == "scratch",
                    "the last stage must be FROM scratch"
                ),
                "COPY" => stage
                    .copies
                    .push(copy(rest).with_context(|| format!("cannot parse `{line}`"))?),
                "ENV" => stage.env.push(rest.to_owned()),
                "ENTRYPOINT" => stage.entrypoint = words(rest)?,
                "CMD" => stage.cmd = words(rest)?,
                "USER" => stage.user = Some(rest.to_owned()),
                "EXPOSE" => stage.ports.extend(rest.split_whitespace().map(str::to_owned)),
                "WORKDIR" => stage.workdir = Some(rest.to_owned()),
                "LABEL" => {
                    let (name, value) = rest
                        .split_once('=')
                        .with_context(|| format!("cannot parse `{line}`"))?;
                    stage
                        .labels
                        .push((name.to_owned(), value.trim_matches('"').to_owned()));
                }
                other => bail!("the last stage uses the unsupported instruction {other}"),
            }
        }
        Ok(stage)
    }
}

fn copy(rest: &str) -> Option<Copy> {
    let mut words = rest.split_whitespace();
    let from = words.next()?.strip_prefix("--from=")?.to_owned();
    let _source = words.next()?;
    let target = words.next()?.to_owned();
    words.next().is_none().then_some(Copy { from, target })
}

fn words(rest: &str) -> Result<Vec<String>> {
    serde_json::from_str(rest)
        .with_context(|| format!("`{rest}` is not a JSON list (the shell form is not supported)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag can be moved to another image; a digest always identifies the same image.
    #[test]
    fn every_image_that_we_build_in_is_named_by_digest() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images");
        let mut seen = 0;
        for entry in std::fs::read_dir(images).unwrap().flatten() {
            let file = entry.path().join("Containerfile");
            let Ok(text) = std::fs::read_to_string(&file) else {
                continue;
            };
            for line in text.lines().filter(|line| line.starts_with("FROM ")) {
                let image = line.split_whitespace().nth(1).unwrap_or_default();
                let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
                let pinned = digest.is_some_and(|digest| {
                    digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit())
                });
                assert!(image == "scratch" || pinned, "{}: {line}", file.display());
                seen += 1;
            }
        }
        assert!(seen > 0, "no Containerfile was found");
    }

    #[test]
    fn the_last_stage_is_read() {
        let stage = Stage::parse(
            "FROM debian:forky AS tree\nRUN anything goes here\n\n# why\nFROM scratch\nCOPY --from=tree /tree/ /\n\
             COPY --from=init /out/init /usr/sbin/keelson-init\nENV A=b c\nEXPOSE 6817/tcp 22/tcp\nUSER 401:401\n\
             LABEL title=\"x y\"\nENTRYPOINT [\"/usr/sbin/keelson-init\", \\\n  \"slurmctld\"]\n",
        )
        .unwrap();
        assert_eq!(
            stage,
            Stage {
                copies: vec![
                    Copy {
                        from: "tree".into(),
                        target: "/".into()
                    },
                    Copy {
                        from: "init".into(),
                        target: "/usr/sbin/keelson-init".into()
                    },
                ],
                env: vec!["A=b c".into()],
                entrypoint: vec!["/usr/sbin/keelson-init".into(), "slurmctld".into()],
                cmd: vec![],
                user: Some("401:401".into()),
                ports: vec!["6817/tcp".into(), "22/tcp".into()],
                workdir: None,
                labels: vec![("title".into(), "x y".into())],
            }
        );
    }

    #[rstest::rstest]
    #[case("FROM scratch\nRUN make\n", "RUN")]
    #[case("FROM debian\nUSER 1\n", "FROM scratch")]
    #[case("FROM scratch\nENTRYPOINT sh -c x\n", "JSON")]
    #[case("FROM scratch\nCOPY a b\n", "COPY a b")]
    #[case("USER 1\n", "no FROM")]
    fn what_the_builder_cannot_do_is_refused(#[case] text: &str, #[case] says: &str) {
        let error = format!("{:#}", Stage::parse(text).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
}
