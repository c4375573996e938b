use super::*;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use rstest::rstest;

#[rstest]
#[case("a", &["a"])]
#[case("a[1-3]", &["a1", "a2", "a3"])]
#[case("a[001-003,5]", &["a001", "a002", "a003", "a5"])]
#[case("a[09-10]", &["a09", "a10"])]
#[case("a[98-101]", &["a98", "a99", "a100", "a101"])]
#[case("a[1-2]b[3-4]", &["a1b3", "a1b4", "a2b3", "a2b4"])]
#[case("a[1-2][3-4]", &["a13", "a14", "a23", "a24"])]
#[case("a[1-2]-ib", &["a1-ib", "a2-ib"])]
#[case("a[1-2]0", &["a10", "a20"])]
#[case("[1-3]", &["1", "2", "3"])]
#[case("a,,b c\td", &["a", "b", "c", "d"])]
#[case("a[1,3],b[2]", &["a1", "a3", "b2"])]
#[case("a[18446744073709551615]", &["a18446744073709551615"])]
#[case("ä[1-2]", &["ä1", "ä2"])]
#[case("", &[])]
fn a_list_stands_for_the_names_that_slurm_reads(#[case] list: &str, #[case] names: &[&str]) {
    assert_eq!(expand(list).unwrap(), names);
}

#[rstest]
#[case("a[1-2")]
#[case("a]1")]
#[case("a[]")]
#[case("a[3-1]")]
#[case("a[1,,2]")]
#[case("a[1-70000]")]
#[case("a[b-c]")]
#[case("a[-1]")]
#[case("a[1-]")]
#[case("a[00x11]")]
#[case("a[ 1-2 ]")]
#[case("a[1-[2]]")]
#[case("a\u{1}b")]
#[case("a[0-9999]b[0-9999]")]
#[case("a[18446744073709551616]")]
fn what_slurm_refuses_is_refused(#[case] list: &str) {
    assert!(expand(list).is_err());
}

#[rstest]
#[case(&["a3", "a1", "a2", "a1"], "a[1-3]")]
#[case(&["a1", "a3"], "a[1,3]")]
#[case(&["a7"], "a7")]
#[case(&["n1-ib", "n2-ib", "n1"], "n1,n[1-2]-ib")]
#[case(&["r0n0", "r0n1", "r1n0"], "r0n[0-1],r1n0")]
#[case(&["a099", "a100", "a101"], "a[099-101]")]
#[case(&["a9", "a10"], "a[9-10]")]
#[case(&["a1", "a01", "a2", "a02"], "a[1-2,01-02]")]
#[case(&["y", "x"], "x,y")]
#[case(&["2", "1"], "[1-2]")]
#[case(&["a00000000000000000000000001"], "a00000000000000000000000001")]
#[case(&[], "")]
fn names_become_the_shortest_list(#[case] names: &[&str], #[case] list: &str) {
    assert_eq!(compress(names).unwrap(), list);
}

#[rstest]
#[case("")]
#[case("a,b")]
#[case("a b")]
#[case("a[1]")]
#[case("a\n")]
fn a_name_that_would_read_as_something_else_is_refused(#[case] name: &str) {
    assert_eq!(compress([name]), Err(HostlistError::Name(name.to_owned())));
}

#[test]
fn a_range_longer_than_slurm_takes_is_split() {
    let list = Hostlist::from_names((0..100_000).map(|n| format!("w-{n}"))).unwrap();
    assert_eq!(list.to_string(), "w-[0-65535,65536-99999]");
    assert_eq!(list.len(), 100_000);
}

#[rstest]
#[case("gpu-[0-65535]", "gpu-7", true)]
#[case("gpu-[0-65535]", "gpu-65536", false)]
#[case("gpu-[0-65535]", "gpu-07", false)]
#[case("gpu-[000-65535]", "gpu-007", true)]
#[case("gpu-[0-9]", "gpu-a-1", false)]
#[case("a[1-2][3-4]", "a14", true)]
#[case("a[1-20][3-4]", "a124", true)]
#[case("a[1-2]0", "a20", true)]
#[case("a,b[1-2]-ib", "b2-ib", true)]
#[case("a", "a1", false)]
#[case("a[18446744073709551615]", "a18446744073709551616", false)]
#[case("", "", false)]
fn a_name_is_found_without_expanding_the_list(#[case] list: &str, #[case] name: &str, #[case] found: bool) {
    assert_eq!(list.parse::<Hostlist>().unwrap().contains(name), found);
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

proptest! {
    #[test]
    fn expand_undoes_compress(names in proptest::collection::vec("[a-c]{0,2}-?[0-9]{0,4}(-[a-z])?[0-2]{0,2}x?", 0..60)) {
        let names: Vec<String> = names.into_iter().filter(|n| !n.is_empty()).collect();
        let list = compress(&names).unwrap();
        prop_assert_eq!(sorted(expand(&list).unwrap()), sorted(names));
    }

    #[test]
    fn a_compressed_list_has_no_name_twice(names in proptest::collection::vec("n0{0,2}[0-9]{1,2}", 0..60)) {
        let expanded = expand(&compress(&names).unwrap()).unwrap();
        prop_assert_eq!(expanded.len(), sorted(expanded).len());
    }

    #[test]
    fn a_list_contains_exactly_its_names(text in "[ab]{0,2}(\\[[0-9]{1,2}(-[0-9]{2})?\\]){0,2}[0-9]{0,1}", other in "[ab]{0,2}[0-9]{0,4}") {
        if let Ok(list) = text.parse::<Hostlist>() {
            let names: Vec<String> = list.names().collect();
            prop_assert!(names.iter().all(|name| list.contains(name)));
            prop_assert_eq!(list.contains(&other), names.contains(&other));
        }
    }

    #[test]
    fn the_order_of_names_does_not_matter(names in proptest::collection::vec("[ab][0-9]{1,3}", 0..40)) {
        let reversed: Vec<_> = names.iter().rev().collect();
        prop_assert_eq!(compress(&names), compress(reversed));
    }

    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "([a-b0-9]|\\[|\\]|,|-| |x){0,30}") {
        if let Ok(list) = text.parse::<Hostlist>() {
            let again: Hostlist = list.to_string().parse().unwrap();
            prop_assert_eq!(&again, &list);
            if list.len() < 10_000 {
                prop_assert_eq!(list.names().count() as u64, list.len());
            }
        }
    }
}
