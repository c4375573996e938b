use super::*;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use rstest::rstest;

fn read(text: &str) -> Document {
    parse(File::Slurm, text, &BTreeMap::new()).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse(File::Slurm, text, &BTreeMap::new()).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn keys_in_any_case_comments_continuations_and_quotes_are_read_as_slurm_reads_them() {
    let text = "# a comment\n\
                slurmctldDEBUG = debug # why not\n\
                SchedulerParameters=bf_continue,\\   \nbf_window=60\n\
                MailProg=\"/bin/my mail\"\n\
                Epilog=/a\\#b\\\\c\r\n\
                \n\
                PartitionName=all Nodes=ALL Default=YES \\\n MaxTime=UNLIMITED # end\n";
    let document = read(text);
    let lines: Vec<_> = document
        .statements
        .iter()
        .map(|s| {
            (
                s.origin.as_ref().unwrap().line,
                s.head.key.as_str(),
                s.head.value.as_str(),
            )
        })
        .collect();
    assert_eq!(lines[0], (2, "slurmctldDEBUG", "debug"));
    assert_eq!(lines[1], (3, "SchedulerParameters", "bf_continue,bf_window=60"));
    assert_eq!(lines[2], (5, "MailProg", "/bin/my mail"));
    assert_eq!(lines[3], (6, "Epilog", "/a#b\\c"));
    assert_eq!(lines[4], (8, "PartitionName", "all"));
    assert_eq!(document.statements[4].attribute("maxtime"), Some("UNLIMITED"));
}

#[rstest]
#[case::no_pair("ClusterName", "line 1: \"ClusterName\" is not in the form Key=Value")]
#[case::no_value("ClusterName=", "line 1: ClusterName has no value")]
#[case::no_value_before_comment("ClusterName= # x", "line 1: ClusterName has no value")]
#[case::two_on_a_line(
    "\nMailProg=a SlurmUser=root",
    "line 2: unexpected text \"SlurmUser=root\" after MailProg, which requires its own line"
)]
#[case::open_quote("MailProg=\"a", "line 1: the value of MailProg has a stray double quote")]
#[case::quote_in_the_middle("MailProg=\"a\"b", "line 1: the value of MailProg has a stray double quote")]
#[case::operator(
    "PartitionName=a Nodes+=b",
    "line 1: Slurm does not support Nodes+= here; use Nodes="
)]
#[case::control("MailProg=a\u{1}b", "line 1: contains the control character '\\u{1}'")]
#[case::lone_carriage_return("MailProg=a\rSlurmUser=root", "line 1: contains the control character '\\r'")]
#[case::pattern("Include *.conf", "line 1: Include *.conf: Slurm does not support patterns")]
#[case::include_without_name("Include  ", "line 1: \"Include\" is not in the form Key=Value")]
fn what_cannot_be_used_is_named_with_its_line(#[case] text: &str, #[case] problem: &str) {
    assert_eq!(problems(text), [problem]);
}

#[test]
fn a_continued_list_must_not_be_indented_because_slurm_would_end_the_value_there() {
    assert_eq!(
        problems("SchedulerParameters=bf_continue,\\\n  defer"),
        ["line 1: unexpected text \"defer\" after SchedulerParameters, which requires its own line"]
    );
}

#[test]
fn all_problems_are_reported_at_once() {
    assert_eq!(problems("a\nMailProg=x\nb\n").len(), 2);
}

#[test]
fn known_files_are_included_in_place_and_others_stay_includes() {
    let files = BTreeMap::from([("gpu.conf".to_owned(), "\nGresTypes=gpu\n".to_owned())]);
    let document = parse(File::Slurm, "include gpu.conf\nINCLUDE /etc/else.conf\n", &files).unwrap();
    let origin = document.statements[0].origin.clone().unwrap();
    assert_eq!(origin.to_string(), "gpu.conf line 2");
    assert_eq!(document.includes[0].1, "/etc/else.conf");
}

#[test]
fn files_that_include_each_other_are_refused() {
    let files = BTreeMap::from([
        ("a".to_owned(), "Include b".to_owned()),
        ("b".to_owned(), "Include a".to_owned()),
    ]);
    let problems = parse(File::Slurm, "Include a", &files).unwrap_err();
    assert!(matches!(problems[0].error, SyntaxError::IncludeDepth(_)));
}

#[test]
fn a_partition_config_is_one_line_of_pairs() {
    assert_eq!(
        parse_pairs("Default=YES  QOS=\"a b\"").unwrap(),
        [Pair::new("Default", "YES"), Pair::new("QOS", "a b")]
    );
    assert_eq!(
        parse_pairs("Default=YES\nSlurmUser=root"),
        Err(SyntaxError::Control('\n'))
    );
    assert!(parse_pairs("  ").unwrap().is_empty());
}

#[rstest]
#[case("")]
#[case("A B")]
#[case("A=1 B")]
#[case("A\nSlurmUser")]
#[case("#A")]
fn a_key_that_would_read_as_something_else_is_refused(#[case] key: &str) {
    Statement::new(key, "x").encode().unwrap_err();
    Statement::new("PartitionName", "x")
        .with(key, "y")
        .encode()
        .unwrap_err();
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "(?s).{0,200}") {
        let _ = parse(File::Slurm, &text, &BTreeMap::new());
    }

    #[test]
    fn slurm_like_text_is_read_or_refused_without_panic(text in "([A-Za-z]{1,4}|=|\"|\\\\|#|\n| |\t|,|\\[|include ){0,60}") {
        let _ = parse(File::Slurm, &text, &BTreeMap::new());
    }

    #[test]
    fn a_written_value_is_read_back_and_adds_nothing(value in "(?s).{0,40}", attribute in "(?s).{0,40}") {
        let statement = Statement::new("PartitionName", value.clone()).with("Nodes", attribute.clone());
        if let Ok(line) = statement.encode() {
            let document = read(&format!("{line}\nMailProg=x\n"));
            prop_assert_eq!(document.statements.len(), 2);
            prop_assert_eq!(&document.statements[0].head.value, &value);
            prop_assert_eq!(document.statements[0].attributes.len(), 1);
            prop_assert_eq!(&document.statements[0].attributes[0].value, &attribute);
        }
    }
}
