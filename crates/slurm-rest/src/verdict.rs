//! Maps the status and Slurm's error numbers of a response to an error of this crate.

use reqwest::StatusCode;

use crate::endpoint::{Endpoint, Kind, NODES};
use crate::error::{Complaint, Error, Peer};
use crate::response::Missing;

/// How the client handles a response with errors: try another token, or request the list without `update_time`.
/// Every other error is final.
#[derive(Debug)]
pub(crate) enum Verdict {
    TokenRefused(String),
    /// The list of nodes, without the partitions that they are in.
    WithoutPartitions(Error),
    Failed(Error),
}

const TOKEN_REFUSED: [i64; 6] = [1007, 6000, 6001, 6004, 6007, 6010];
/// "Access denied" and "Invalid user id", which Slurm uses for the same error.
const ACCESS_DENIED: [i64; 2] = [2002, 2010];
const DATABASE_UNREACHABLE: [i64; 2] = [7000, 7008];
const UNSPECIFIED: i64 = -1;

/// Connection failures between daemons, some as errno values, and a controller that is now only a backup.
fn is_unreachable(number: i64) -> bool {
    matches!(number, 32 | 101 | 104 | 110 | 111 | 113 | 1001..=1004 | 1013..=1023 | 1800..=1805 | 5003..=5005 | 2027 | 2131)
        || DATABASE_UNREACHABLE.contains(&number)
}

/// Recognizes a complete slurmctld response despite a slurmdbd error. slurmrestd asks slurmdbd only for TRES names:
/// partitions come with status 500 and this error while slurmdbd is unreachable.
fn is_about_names_only(call: &Endpoint, complaint: &Complaint) -> bool {
    call.kind != Kind::Write
        && call.path.starts_with("/slurm/")
        && complaint.description == "Slurmdb query failed"
}

fn is_about_partitions_only(complaint: &Complaint) -> bool {
    complaint.number == UNSPECIFIED && complaint.description == "Unable to query partitions"
}

/// Classifies a response. `errors` take precedence over the status, since Slurm sends them with any status.
pub(crate) fn classify(
    call: &Endpoint,
    status: StatusCode,
    errors: &[Complaint],
    missing: &Missing<'_>,
) -> Result<(), Verdict> {
    let message = || {
        errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    };
    let behind = if call.path.starts_with("/slurmdb/") {
        Peer::Slurmdbd
    } else {
        Peer::Slurmctld
    };
    let any = |test: &dyn Fn(i64) -> bool| errors.iter().any(|complaint| test(complaint.number));
    let failed = |error| Err(Verdict::Failed(error));

    if !errors.is_empty()
        && errors
            .iter()
            .all(|complaint| is_about_names_only(call, complaint))
    {
        return Ok(());
    }

    if errors.is_empty() {
        return match status.as_u16() {
            200..=299 => Ok(()),
            401 | 511 => Err(Verdict::TokenRefused(status.to_string())),
            403 => failed(Error::Unauthorised {
                message: status.to_string(),
            }),
            502..=504 => failed(Error::Unreachable {
                daemon: behind,
                message: status.to_string(),
            }),
            _ => failed(Error::Protocol {
                call: call.path.to_owned(),
                message: format!("status {status}"),
            }),
        };
    }
    if any(&|number| TOKEN_REFUSED.contains(&number)) {
        return Err(Verdict::TokenRefused(message()));
    }
    if any(&|number| ACCESS_DENIED.contains(&number)) {
        return failed(Error::Unauthorised { message: message() });
    }
    // 24.11 requests the partitions of changed nodes with the same `update_time` and treats "no change" as a failure.
    if *call == NODES && errors.iter().all(is_about_partitions_only) {
        return Err(Verdict::WithoutPartitions(Error::Unreachable {
            daemon: behind,
            message: message(),
        }));
    }
    // A read without a stated reason failed because slurmctld does not respond.
    if any(&is_unreachable) || (call.kind != Kind::Write && any(&|number| number == UNSPECIFIED)) {
        return failed(Error::Unreachable {
            daemon: behind,
            message: message(),
        });
    }
    // Slurm reports an unknown node or reservation as "No error".
    let unknown = |complaint: &Complaint| missing.numbers.contains(&complaint.number);
    if errors.iter().all(unknown) {
        return failed(missing.error());
    }
    failed(Error::Refused {
        complaints: errors.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;
    use rstest::rstest;

    fn classified(call: &Endpoint, status: u16, numbers: &[i64]) -> String {
        let errors: Vec<_> = numbers
            .iter()
            .map(|number| Complaint {
                number: *number,
                error: "e".into(),
                description: "d".into(),
            })
            .collect();
        let missing = Missing {
            what: "node n",
            numbers: &[0, 2018],
        };
        match classify(call, StatusCode::from_u16(status).unwrap(), &errors, &missing) {
            Ok(()) => "fine".into(),
            Err(Verdict::TokenRefused(_)) => "token".into(),
            Err(Verdict::WithoutPartitions(_)) => "without partitions".into(),
            Err(Verdict::Failed(error)) => format!("{error:?}")
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    #[rstest]
    #[case::fine(200, &[], "fine")]
    #[case::errors_win(200, &[2016], "Refused")]
    #[case::refused_500(500, &[2016], "Refused")]
    #[case::refused_422(422, &[2016], "Refused")]
    #[case::unknown(200, &[0], "NotFound")]
    #[case::unknown_by_number(422, &[2018], "NotFound")]
    #[case::partly_unknown(422, &[2018, 2016], "Refused")]
    #[case::bad_token(511, &[1007], "token")]
    #[case::no_token(401, &[], "token")]
    #[case::denied(403, &[2002], "Unauthorised")]
    #[case::controller_down(502, &[1800], "Unreachable")]
    #[case::standby(500, &[2027], "Unreachable")]
    #[case::unspecified(500, &[-1], "Unreachable")]
    #[case::gateway(503, &[], "Unreachable")]
    #[case::odd(418, &[], "Protocol")]
    fn responses_are_classified(#[case] status: u16, #[case] numbers: &[i64], #[case] verdict: &str) {
        assert_eq!(classified(&endpoint::NODE, status, numbers), verdict);
    }

    #[test]
    fn partitions_are_whole_while_the_accounting_is_away() {
        let error = Complaint {
            number: 111,
            error: "Connection refused".into(),
            description: "Slurmdb query failed".into(),
        };
        let classify = |call: &Endpoint| {
            classify(
                call,
                StatusCode::INTERNAL_SERVER_ERROR,
                std::slice::from_ref(&error),
                &Missing::NONE,
            )
        };
        assert!(classify(&endpoint::PARTITIONS).is_ok());
        assert!(classify(&endpoint::CLUSTERS).is_err());
        assert!(classify(&endpoint::NODES_UPDATE).is_err());
    }

    #[test]
    fn nodes_without_their_partitions_are_no_answer() {
        let error = Complaint {
            number: -1,
            error: "Unspecified error".into(),
            description: "Unable to query partitions".into(),
        };
        let classify = |call: &Endpoint| {
            classify(
                call,
                StatusCode::INTERNAL_SERVER_ERROR,
                std::slice::from_ref(&error),
                &Missing::NONE,
            )
        };
        assert!(matches!(
            classify(&NODES),
            Err(Verdict::WithoutPartitions(Error::Unreachable { .. }))
        ));
        assert!(matches!(
            classify(&endpoint::PARTITIONS),
            Err(Verdict::Failed(Error::Unreachable { .. }))
        ));
    }

    #[test]
    fn a_write_that_fails_for_no_reason_is_not_taken_for_a_lost_way() {
        assert_eq!(classified(&endpoint::NODE_DELETE, 500, &[-1]), "Refused");
    }
}
