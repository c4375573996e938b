//! Reconciles Tokens: a JSON Web Token for one Slurm user, stored in a Secret and renewed before it expires.
//!
//! observe (reads) → validate, plan, build (pure) → apply (writes) → status (writes).

mod apply;
mod build;
mod jwt;
mod observe;
mod plan;
mod status;
mod validate;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use keelson_api::{Token, well_known::reason};
use keelson_runtime::{Key, Requeue, apply::Writer, ownership::is_controlled_by, run::chain};
use secrecy::ExposeSecret;

use jwt::Claims;
use plan::{Cause, Held, Plan};
use status::Outcome;
use validate::Validated;

use crate::{context::Context, error::Error, problem::Problem};

pub const MANAGER: &str = "slurm-operator/token";

pub async fn reconcile(context: Arc<Context>, writer: Writer, key: Key) -> Result<Requeue, Error> {
    let Some(token) = context.caches.tokens.get(&key) else {
        return Ok(Requeue::OnChange);
    };
    if token.metadata.deletion_timestamp.is_some() {
        return Ok(Requeue::OnChange);
    }
    let now = context.clock.now();
    let observed = observe::observe(&context, Arc::clone(&token)).await?;
    let carried_out = match validate::validate(&observed) {
        Ok(validated) => carry_out(&context, &writer, &token, &validated, now).await,
        Err(problem) => Ok(Outcome::Blocked(problem)),
    };
    let refused;
    let outcome = match &carried_out {
        Ok(outcome) => outcome,
        Err(error) => {
            refused = Outcome::Blocked(Problem::refused(chain(error)));
            &refused
        }
    };
    if let (Outcome::Issued(_), Some(former)) = (outcome, &observed.former)
        && is_controlled_by(&former.metadata, &token.metadata)
    {
        writer.delete(former.as_ref()).await.map_err(Error::Apply)?;
    }
    if let Some(problem) = outcome.problem() {
        context
            .events
            .warning(token.as_ref(), problem.reason, problem.message.clone());
    }
    let status = status::compute(&token, outcome, now);
    context
        .write_status(&writer, &context.caches.tokens, token.as_ref(), &status)
        .await?;
    carried_out.map(|outcome| next_look(&token, &outcome, now))
}

async fn carry_out(
    context: &Context,
    writer: &Writer,
    token: &Token,
    validated: &Validated,
    now: Timestamp,
) -> Result<Outcome, Error> {
    let (Held { text, claims }, cause) = match plan::plan(validated, now) {
        Plan::Keep(held) => (held, None),
        Plan::Leave(problem, claims) => return Ok(Outcome::Left(problem, claims)),
        Plan::Sign(cause) => {
            let claims = Claims::new(&validated.user, now, validated.lifetime_secs, rand::random());
            let text = jwt::sign(&claims, validated.key.expose_secret()).map_err(Error::Sign)?;
            (Held { text, claims }, Some(cause))
        }
    };
    let desired = build::build_secret(token, validated, &text);
    let immovable = validated
        .place
        .secret()
        .filter(|live| plan::must_be_replaced(live, &text, validated));
    match immovable {
        Some(old) => apply::replace(context, writer, &desired, old).await,
        None => apply::apply(context, writer, token, &desired, &validated.place).await,
    }
    .map_err(Error::Apply)?;
    if let Some(cause) = cause {
        tracing::info!(user = claims.sun, cause = cause.sentence(), "signed a token");
        // A renewal in time is not worth an event.
        if cause != Cause::Due {
            let note = format!("signed a token for {}: {}", claims.sun, cause.sentence());
            context.events.normal(token, reason::ISSUED, note);
        }
    }
    Ok(Outcome::Issued(claims))
}

/// Returns when the token is due, or when the status has to report its expiry.
fn next_look(token: &Token, outcome: &Outcome, now: Timestamp) -> Requeue {
    let Outcome::Issued(claims) = outcome else {
        return Requeue::OnChange;
    };
    let at = if token.spec.refresh {
        plan::renew_at(claims)
    } else {
        claims.expires_at()
    };
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO);
    Requeue::After(wait.max(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests;
