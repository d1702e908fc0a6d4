//! Labels in which names of the internet end: where a search list makes a name of one of those, they stand below its base.
//! Which labels these are decides how many questions are spared, and not what is answered: of each it is asked whether it
//! exists. Such as are names of namespaces too (`app`, `dev`, `cloud`) are left out, since asking there is in vain.

/// In order. `local` is the end of most clusters' domains, of which names are given to search lists as well.
const PUBLIC: [&[u8]; 36] = [
    b"ai", b"at", b"au", b"be", b"br", b"ca", b"ch", b"cn", b"co", b"com", b"cz", b"de", b"edu", b"es",
    b"eu", b"fr", b"gov", b"in", b"info", b"io", b"ir", b"it", b"jp", b"kr", b"local", b"me", b"net", b"nl",
    b"org", b"pl", b"ru", b"se", b"tv", b"ua", b"uk", b"us",
];

/// Whether it is one of them.
pub(super) fn is_public(label: &[u8]) -> bool {
    PUBLIC.binary_search(&label).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_of_the_list_is_found_and_no_other() {
        assert!(PUBLIC.is_sorted());
        assert!(PUBLIC.iter().all(|label| is_public(label)));
        for other in [&b""[..], b"c", b"comm", b"dev", b"example", b"svc"] {
            assert!(!is_public(other), "{other:?}");
        }
    }
}
