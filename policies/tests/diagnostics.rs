//! The table of codes and the page that is made of it.

use std::collections::BTreeSet;
use std::path::Path;

use egret_policies::diagnostic::{Code, reference};

#[test]
fn the_reference_is_the_one_of_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/diagnostics.md");
    if std::env::var_os("EGRET_UPDATE").is_some() {
        std::fs::write(&page, reference()).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(
        written == reference(),
        "docs/diagnostics.md differs from the table of codes; write it again with:\n\
         EGRET_UPDATE=1 cargo test -p egret-policies --test diagnostics"
    );
}

#[test]
fn codes_are_unique_sorted_and_well_formed() {
    let ids: Vec<_> = Code::ALL.iter().map(|code| code.id()).collect();
    assert!(ids.is_sorted());
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    for id in ids {
        assert!(
            id.len() == 6 && id.starts_with("EG") && id[2..].bytes().all(|octet| octet.is_ascii_digit()),
            "{id}"
        );
    }
}
