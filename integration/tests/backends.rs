//! Every story on the backends `ebpf`, `nftables` and `both`: the table of scenario and backend. On `ebpf` and `both` those that use the usual setup.
//!
//! Each is told by a child process of this program. `EBPF_LIMITS` and `NFTABLES_LIMITS` list what a backend cannot do; a story of that list that
//! goes well fails the test as well, so that the list stays true.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::{fs, panic, path::Path, process::exit};

use comfy_table::Table;

#[path = "scenarios/mod.rs"]
#[allow(unused_macros, reason = "the list makes tests in the other program")]
mod scenarios;

#[path = "scenarios/in_child.rs"]
mod in_child;

use in_child::FAILED;
use scenarios::{Scenario, backend_override};

/// How a child says that the story starts its enforcer itself.
const OWN_SETUP: i32 = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Holds,
    /// An assertion of the story, in its words.
    Fails(String),
    /// The story starts its enforcer itself, on netfilter.
    OwnSetup,
}

#[test]
#[ignore = "some minutes: make backends"]
fn every_scenario_holds_on_each_backend_or_is_a_known_limit() {
    if let Some(scenario) = in_child::of_child() {
        tell(scenario);
    }
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not root");
        eprintln!("*** NOT TESTED: worlds need root ***");
        return;
    }
    let chosen = std::env::var("EGRET_BACKENDS").unwrap_or_default();
    let backends: Vec<&Backend> = BACKENDS
        .iter()
        .filter(|backend| backend.name.contains(&chosen))
        .collect();
    assert!(
        !backends.is_empty(),
        "EGRET_BACKENDS={chosen}: no backend has this in its name"
    );
    let results = in_child::run_all(&in_child::chosen(), |scenario| {
        backends
            .iter()
            .map(|backend| run(scenario, backend))
            .collect::<Vec<End>>()
    });
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(std::iter::once("scenario").chain(backends.iter().map(|backend| backend.name)));
    let mut wrong = Vec::new();
    for (scenario, ends) in &results {
        let mut row = vec![scenario.name.to_owned()];
        for (backend, end) in backends.iter().zip(ends) {
            let text = match (end, backend.limit_of(scenario.name)) {
                (End::Holds, None) => "holds".to_owned(),
                (End::OwnSetup, _) => "not run: a setup of its own".to_owned(),
                (End::Fails(_), Some(why)) => format!("limit: {why}"),
                (End::Fails(why), None) => format!("FAILS: {why}"),
                (End::Holds, Some(why)) => format!("HOLDS, but is listed: {why}"),
            };
            if text.starts_with("FAILS") || text.starts_with("HOLDS") {
                wrong.push((scenario.name, backend.name));
            }
            row.push(text);
        }
        table.add_row(row);
    }
    println!("{table}");
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        results.len()
    );
}

#[test]
fn services_are_judged_behind_the_translation_on_ebpf() {
    if !nix::unistd::geteuid().is_root() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not root");
        eprintln!("*** NOT TESTED: worlds need root ***");
        return;
    }
    let chosen = in_child::chosen();
    let of_services: Vec<&Scenario> = chosen
        .into_iter()
        .filter(|scenario| OF_SERVICES.contains(&scenario.name))
        .collect();
    assert_eq!(of_services.len(), OF_SERVICES.len());
    for (scenario, end) in in_child::run_all(&of_services, |scenario| run(scenario, &BACKENDS[0])) {
        assert_eq!(end, End::Holds, "{}", scenario.name);
    }
}

/// Services by kube-proxy's rules in all modes that this kernel has, node ports, hairpins, clients outside, and events of them.
const OF_SERVICES: [&str; 9] = [
    "a_service_leads_no_pod_to_what_is_denied",
    "a_client_outside_is_refused_where_a_service_leads_to_what_is_denied",
    "a_service_is_judged_by_the_pod_behind_it_and_its_port",
    "a_client_of_a_node_port_is_itself_until_another_node_masquerades",
    "a_node_port_is_the_pod_behind_it_here_and_a_node_elsewhere",
    "what_kube_proxy_accepts_is_judged_though_it_comes_later",
    "no_network_policy_keeps_a_pod_from_itself_and_a_cluster_wide_one_does",
    "the_api_server_is_refused_by_every_way_that_leads_there",
    "what_no_rule_of_a_pod_denies_is_told_with_its_reason",
];

/// A backend, and what it cannot do.
struct Backend {
    name: &'static str,
    limits: Limits,
}

/// Why, and the stories that need it.
type Limits = &'static [(&'static str, &'static [&'static str])];

const BACKENDS: [Backend; 3] = [
    Backend {
        name: "ebpf",
        limits: EBPF_LIMITS,
    },
    Backend {
        name: "nftables",
        limits: NFTABLES_LIMITS,
    },
    Backend {
        name: "both",
        limits: BOTH_LIMITS,
    },
];

impl Backend {
    fn limit_of(&self, scenario: &str) -> Option<&'static str> {
        self.limits
            .iter()
            .find(|(_, scenarios)| scenarios.contains(&scenario))
            .map(|(why, _)| *why)
    }
}

/// What the backend `both` cannot do.
const BOTH_LIMITS: Limits = &[
    (
        "a denied call fails at once (EPERM), and the story is about the packet that it would have sent",
        &[
            "a_packet_in_anothers_name_gains_nothing",
            "a_neighbours_address_gains_nothing_behind_another_port",
            "neighbours_are_found_where_everything_is_denied",
            "a_refused_sender_hears_it_at_once_in_both_directions_and_families",
            "what_others_accept_is_judged_first_and_where_it_is_not_that_is_said",
        ],
    ),
    (
        "the story translates an address that is no Service's",
        &["a_program_learns_at_once_that_its_connection_is_forbidden"],
    ),
    (
        "a call may be refused before the rules inside the pod are in force, and the story takes the one for the other",
        &["a_cluster_firewall_holds_on_an_interface_that_leads_past_the_node"],
    ),
];

/// What the backend `nftables` cannot do, or what of a story is about iptables and ipset alone.
const NFTABLES_LIMITS: Limits = &[(
    "the story is about programs, locks, flavours and jumps of iptables, or about ipset",
    &[
        "a_name_is_usable_before_a_long_change_of_other_rules_ends",
        "who_holds_the_lock_of_iptables_is_named_and_waited_for",
        "a_pod_whose_rules_are_refused_is_named_and_the_others_get_theirs",
        "a_set_that_others_made_and_hold_closes_its_pod_alone_until_they_let_go",
        "a_pod_that_vanishes_in_the_middle_of_a_change_concerns_nobody_else",
        "what_others_flush_where_the_kernel_tells_of_nothing_is_put_right_as_soon",
        "the_rules_follow_the_kubelet_to_the_other_flavour_without_a_gap",
        "where_the_programs_for_ipv6_are_missing_ipv4_is_enforced_and_the_node_is_not_ready",
    ],
)];

/// What the backend `ebpf` cannot do, or what of a story is about netfilter alone, and the stories that need it.
const EBPF_LIMITS: Limits = &[
    (
        "the story reads or changes iptables and ipset",
        &[
            "a_question_to_another_resolver_is_answered_in_its_name_and_opens_its_own",
            "a_set_that_others_made_and_hold_closes_its_pod_alone_until_they_let_go",
            "neighbours_are_found_where_everything_is_denied",
            "what_others_flush_is_put_right_within_five_seconds_and_it_is_said_whose_doing_it_was",
            "what_others_flush_where_the_kernel_tells_of_nothing_is_put_right_as_soon",
            "what_others_flush_while_news_are_lost_is_put_right_all_the_same",
            "what_others_accept_is_judged_first_and_where_it_is_not_that_is_said",
            "the_rules_follow_the_kubelet_to_the_other_flavour_without_a_gap",
            "a_pod_at_a_used_address_inherits_no_connection",
            "what_dnsd_told_is_told_again_to_the_same_pod_alone",
            "the_next_pod_at_an_address_is_told_for_itself",
            "another_cable_is_another_pods_before_the_source_says_so",
        ],
    ),
    (
        "a denied call fails at once (EPERM), and the story waits for a timeout or cannot go on",
        &[
            "a_pod_is_one_client_whatever_it_writes_as_its_source",
            "a_question_in_anothers_name_is_neither_answered_nor_recorded",
            "a_packet_in_anothers_name_gains_nothing",
            "a_neighbours_address_gains_nothing_behind_another_port",
            "a_refused_sender_hears_it_at_once_in_both_directions_and_families",
        ],
    ),
    (
        "a source address is not checked against the interface",
        &["the_own_node_is_where_packets_start_and_not_what_they_bear"],
    ),
    (
        "an idle socket is not ended before its next packet, and sockets outside pods never",
        &[
            "a_program_learns_at_once_that_its_connection_is_forbidden",
            "only_what_is_open_to_members_that_go_is_asked_again",
            "a_client_on_the_node_learns_that_a_server_does_not_want_it_any_more",
            "a_client_outside_is_reset_when_its_open_connection_is_forbidden",
        ],
    ),
    (
        "datagrams from before the programs belong to whom sends next",
        &["what_was_open_before_the_first_start_is_judged"],
    ),
    (
        "interfaces and bridges of pods are not looked at",
        &[
            "a_cluster_firewall_holds_on_an_interface_that_leads_past_the_node",
            "a_filter_on_a_pods_link_is_told_and_counted",
            "pods_of_one_bridge_are_judged_where_that_is_enabled",
            "pods_of_one_bridge_are_judged_in_the_legacy_flavour_as_well",
            "a_bridge_that_is_not_judged_is_told",
        ],
    ),
];

/// The child: tells one story and exits with what came of it.
fn tell(scenario: &Scenario) -> ! {
    let ended = panic::catch_unwind(|| scenario.tell());
    if !backend_override::was_used() {
        exit(OWN_SETUP);
    }
    match ended {
        Ok(Ok(())) => exit(0),
        Ok(Err(error)) => {
            eprintln!("panicked at {error}");
            exit(FAILED)
        }
        Err(_) => exit(FAILED),
    }
}

fn run(scenario: &Scenario, backend: &Backend) -> End {
    let pins = format!("/sys/fs/bpf/eg-backends-{}-{}", std::process::id(), scenario.name);
    let variables = [
        (backend_override::BACKEND, backend.name),
        (backend_override::PINS, &*pins),
    ];
    let (status, said) = in_child::run(
        scenario,
        "every_scenario_holds_on_each_backend_or_is_a_known_limit",
        &variables,
    );
    if Path::new(&pins).exists() {
        fs::remove_dir_all(&pins).unwrap();
    }
    match status {
        Some(0) => End::Holds,
        Some(OWN_SETUP) => End::OwnSetup,
        Some(_) => End::Fails(first_assertion(&said)),
        None => End::Fails("hangs, or was ended by a signal".to_owned()),
    }
}

fn first_assertion(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let place = lines.next().unwrap_or_default();
    let place = place.split("panicked at ").nth(1).unwrap_or_default();
    let words: String = lines.next().unwrap_or_default().chars().take(160).collect();
    format!("{place} {words}")
}
