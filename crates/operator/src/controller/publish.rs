//! Chooses the configuration to publish: asks Slurm where a change could cost jobs, and decides nothing itself.

use keelson_api::well_known::{annotation, file};
use keelson_runtime::{Key, run::chain};

use super::{
    build::{self, Configuration, Rendered},
    delivery::{self, Expected},
    observe::{Observed, observe_usage},
    published::{Decision, Step, key_in_use},
    validate::{Internal, Validated},
};
use crate::{children::checksum, context::Context, keys, problem::Problem};

/// What is to be published, and what is to be said about it.
#[derive(Debug)]
pub struct Chosen {
    pub configuration: Configuration,
    /// What the first process of our images should report.
    pub expected: Expected,
    /// Lines of the user's that are not used.
    pub findings: Vec<String>,
    /// What of the old configuration is kept, and why.
    pub waiting: Vec<String>,
    /// Why the newest one is not published at all.
    pub held: Option<Problem>,
}

pub async fn choose(
    context: &Context,
    observed: &Observed,
    validated: &mut Validated,
) -> Result<Chosen, Problem> {
    let render =
        |validated: &Validated| build::render(validated).map_err(|error| Problem::invalid(chain(&error)));
    let mut rendered = render(validated)?;
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let published = observed
        .live
        .config
        .as_ref()
        .and_then(|config| config.data.clone());
    let step = published
        .as_ref()
        .zip(rendered.files.get(file::SLURM_CONF))
        .and_then(|(published, candidate)| {
            Step::between(
                published.get(file::SLURM_CONF)?,
                candidate,
                &internal.conf.included_files,
            )
        });
    let running_key = keys::slurm_key_in_use(observed.live.stateful_set.as_deref())
        .filter(|running| *running != internal.slurm_key_hash);
    let usage = if running_key.is_some() || step.as_ref().is_some_and(Step::needs_usage) {
        observe_usage(context, &Key::of(observed.controller.as_ref())).await
    } else {
        None
    };
    let mut restart = false;
    let mut waiting = Vec::new();
    let mut held = None;
    if let Some((running, problem)) =
        running_key.and_then(|running| Some((running, key_in_use(usage.as_ref())?)))
    {
        // slurmd reads its key again with a changed configuration, which therefore waits too.
        held = Some(problem);
        internal.slurm_key_hash = running;
        rendered.files = published.unwrap_or_default();
    } else if let Some(step) = step {
        match step.decide(usage.as_ref()) {
            Decision::Publish {
                retained,
                restart: needed,
                waiting: why,
            } => {
                restart = needed;
                waiting = why;
                if !retained.is_empty() {
                    internal.conf.retained = retained;
                    rendered = render(validated)?;
                }
            }
            Decision::Hold(problem) => {
                held = Some(problem);
                rendered.files = published.unwrap_or_default();
            }
        }
    }
    let Validated::Internal(internal) = validated else {
        return Ok(plain(rendered));
    };
    let name = hash(&rendered, internal);
    let configuration = Configuration {
        restart_hash: restart_hash(observed, internal, &rendered, restart),
        files: rendered.files,
        name: Some(name.clone()),
    };
    Ok(Chosen {
        expected: Expected {
            config: name,
            jwt_key: internal.jwt_key_hash.clone(),
        },
        configuration,
        findings: rendered.findings,
        waiting,
        held,
    })
}

fn plain(rendered: Rendered) -> Chosen {
    Chosen {
        configuration: Configuration {
            files: rendered.files,
            restart_hash: None,
            name: None,
        },
        expected: Expected::default(),
        findings: rendered.findings,
        waiting: vec![],
        held: None,
    }
}

fn hash(rendered: &Rendered, internal: &Internal) -> String {
    let mut files = internal.user_files.clone();
    files.extend(
        rendered
            .files
            .iter()
            .map(|(name, text)| (name.clone(), text.clone().into_bytes())),
    );
    delivery::hash(&files)
}

/// Our images take a configuration in by themselves and restart only for what needs it. The peer's restart for each,
/// unless their sidecar takes it in. As long as nobody can tell which it is, nothing restarts.
fn restart_hash(
    observed: &Observed,
    internal: &Internal,
    rendered: &Rendered,
    restart: bool,
) -> Option<String> {
    let before = observed.live.config.as_ref().and_then(|config| {
        config
            .metadata
            .annotations
            .as_ref()?
            .get(annotation::SLURM_CONFIG_HASH)
            .cloned()
    });
    let ours = delivery::image_is_ours(&observed.live.answers);
    let inplace = observed.controller.spec.inplace_reconfigure;
    let first = observed.live.config.is_none();
    let by_restart = !inplace && (ours == Some(false) || (first && ours.is_none()));
    if by_restart || restart {
        let user: Vec<u8> = internal.user_files.values().flatten().copied().collect();
        let generated = checksum::of_texts(&rendered.files);
        return Some(checksum::of_bytes(
            format!("{generated}{}", checksum::of_bytes(&user)).as_bytes(),
        ));
    }
    before
}
