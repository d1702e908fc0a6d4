//! Every scenario of a working node, with the mechanism that it is about.
//!
//! A scenario gets a world, sets up what it needs, and panics at a failed expectation; an error means that it could
//! not run. The list below has name, switch and function of each: `tests/scenarios.rs` runs each as it is,
//! `tests/switches.rs` without its mechanism.

#![allow(
    clippy::disallowed_methods,
    reason = "stories are about real time: how long an answer waits, when a record ends"
)]
#![allow(clippy::unwrap_used, reason = "a story says what it expects")]

use egret_integration::World;

pub(crate) mod backend_override;
mod deployment;
mod names;
mod answers;
mod holding;
mod concurrent_updates;
mod programs;
mod refusals;
mod identity;
mod expiry;
mod restarts;
mod changes;
mod unknown;
mod rules;
mod kinds;
mod firewall;
mod protocols;
mod dns;
mod services;
mod exposure;
mod neighbours;
mod apiserver;
mod reuse;
mod interfaces;
mod bridges;
mod events;
mod audit;
mod cgroups;
mod replacement;
mod threads;
mod stubs;
mod interception;
mod named;
mod shares;

#[path = "../../switches/switch.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the copy of the product has it as `egret_shared::switch`"
)]
pub(crate) mod switch;

use deployment::TestResult;
use switch::Switch;

/// A scenario and the mechanism without which it must fail.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    #[allow(
        dead_code,
        reason = "not every program that tells stories takes mechanisms away"
    )]
    pub(crate) switch: Switch,
    story: fn(&mut World) -> TestResult,
}

impl Scenario {
    /// Runs the scenario in a world of its own, and checks that nothing is left of it.
    pub(crate) fn tell(&self) -> TestResult {
        let Some(mut world) = World::or_skip() else {
            return Ok(());
        };
        if backend_override::judges_sockets() {
            world.put_pods_in_cgroups()?;
        }
        (self.story)(&mut world)?;
        world.assert_nothing_left();
        Ok(())
    }
}

/// Hands the list to a macro: `chapter: story without switch`.
macro_rules! with_every_scenario {
    ($then:ident) => {
        $then! {
            names: an_allowed_name_resolves_and_connects_at_once without Hold;
            names: the_pod_that_asked_is_refused_another_names_address without MatchNames;
            names: a_pod_that_did_not_ask_is_refused_the_same_address without PerPodRecords;
            names: a_wildcard_covers_one_or_more_labels_and_not_its_apex without WholeLabels;
            names: letter_case_makes_no_difference_anywhere without IgnoreCase;
            names: a_name_with_120_addresses_is_reached_at_each_of_them without RetryTruncated;
            names: rotating_answers_add_up_for_each_name_under_a_wildcard without AccumulateAddresses;
            names: names_of_the_cluster_open_pods_and_no_cluster_address without Guard;
            names: a_rule_of_names_and_ports_opens_those_ports_alone without MatchPorts;
            names: both_families_are_learned_side_by_side without AccumulateAddresses;
            answers: aliases_in_any_order_lead_to_their_addresses without FollowChain;
            answers: a_chain_over_two_answers_counts_where_the_second_name_is_named_too without MatchNames;
            answers: an_address_lives_as_long_as_the_shortest_alias_on_its_way without LowestTtl;
            answers: an_address_whose_owner_is_not_on_the_chain_is_not_learned without ChainOnly;
            answers: a_name_opens_neither_the_node_nor_the_metadata_service without Protect;
            answers: a_name_opens_neither_a_node_nor_the_api_server without Guard;
            answers: a_spoofed_answer_is_neither_relayed_nor_learned without MatchAnswer;
            answers: a_truncated_answer_is_asked_again_over_tcp without RetryTruncated;
            answers: stock_programs_that_are_told_of_truncation_get_all_over_tcp without RetryTruncated;
            answers: questions_over_one_connection_are_observed_and_held_each_by_itself without Hold;
            stubs: every_stub_finds_all_addresses_and_connects_at_once without RetryTruncated;
            stubs: a_stub_that_asks_again_and_again_costs_one_question_upstream without OneFlight;
            named: each_way_to_name_dnsd_ends_in_the_pods_own_records without PerPodRecords;
            shares: what_search_lists_make_of_a_name_is_asked_once_for_all_pods_and_types without OneFlight;
            shares: what_is_below_a_denied_name_is_asked_of_nobody without CutBelow;
            shares: a_pod_that_floods_dnsd_takes_nothing_from_the_others without FairShares;
            shares: a_pod_is_one_client_whatever_it_writes_as_its_source without PayByInterface;
            replacement: the_manifest_of_node_local_dns_serves_pods without NodeCache;
            replacement: pods_reach_the_cluster_dns_soon_after_dnsd_died_or_hangs without SignOfLife;
            replacement: the_fallback_asks_whom_only_the_enforcer_knew without LearnFallback;
            replacement: dns_is_judged_although_dnsd_lets_it_in without BehindPolicy;
            replacement: dnsds_that_take_over_from_each_other_lose_no_question without HandOver;
            replacement: what_is_set_up_goes_with_the_last_dnsd_alone without HandOver;
            replacement: what_one_dnsd_told_and_kept_the_next_one_knows without HandOverMemory;
            threads: a_dnsd_of_several_threads_is_replaced_under_load_and_loses_no_question without HandOver;
            threads: what_further_threads_were_asked_they_answer_before_dnsd_ends without DrainThreads;
            threads: one_thread_that_hangs_leaves_pods_to_the_cluster_dns without WatchThreads;
            threads: a_thread_that_hangs_keeps_no_successor_waiting without LeaveHanging;
            threads: a_thread_that_hangs_keeps_nothing_from_being_told_when_dnsd_ends without LeaveHanging;
            interception: a_question_to_another_resolver_is_answered_in_its_name_and_opens_its_own without Intercept;
            interception: what_is_caught_is_judged_by_the_address_that_was_asked without MatchPeers;
            interception: pods_of_a_spared_namespace_ask_other_resolvers_themselves without SpareNamespaces;
            interception: a_service_at_the_port_of_dns_is_asked_itself without SpareServices;
            interception: what_pods_ask_of_others_goes_there_when_dnsd_is_dead_or_hangs without CatchAlive;
            interception: a_resolver_that_nobody_trusts_answers_and_opens_nothing without TrustChosen;
            interception: a_connection_to_another_resolver_stays_with_whom_it_began without StayWithBeginning;
            interception: questions_to_others_are_not_lost_when_dnsds_take_over without HandOver;
            holding: no_answer_arrives_before_the_kernel_is_ready without Hold;
            holding: the_second_of_two_simultaneous_questions_waits_as_long_as_the_first without HoldSecond;
            holding: an_answer_from_the_cache_is_held_for_a_pod_that_was_not_told without HoldCached;
            holding: a_stalled_answer_is_released_at_its_deadline_and_opens_nothing without StallDeadline;
            holding: a_stalled_answer_becomes_a_failure_or_silence_where_told_so without StallDeadline;
            holding: what_was_told_while_the_enforcer_was_away_is_realized_soon_after without Resync;
            holding: two_dnsds_hold_each_what_it_told_itself without Hold;
            concurrent_updates: a_name_is_usable_before_a_long_change_of_other_rules_ends without RecordsMeanwhile;
            refusals: who_holds_the_lock_of_iptables_is_named_and_waited_for without TryAgain;
            refusals: a_pod_whose_rules_are_refused_is_named_and_the_others_get_theirs without TryAgain;
            refusals: a_set_that_others_made_and_hold_closes_its_pod_alone_until_they_let_go without TryAgain;
            refusals: a_pod_that_vanishes_in_the_middle_of_a_change_concerns_nobody_else without Generation;
            identity: a_question_in_anothers_name_is_neither_answered_nor_recorded without AttributeByInterface;
            identity: a_question_that_belongs_to_no_pod_is_answered_and_not_recorded without AttributeByInterface;
            identity: a_packet_in_anothers_name_gains_nothing without DispatchByInterface;
            expiry: a_name_whose_time_is_over_opens_no_new_connection without ExpireRecords;
            expiry: an_answer_without_time_to_live_is_usable_for_a_moment without ExpireRecords;
            expiry: an_open_connection_outlives_its_record without KeepEstablished;
            expiry: an_open_connection_outlives_its_record_and_a_later_change_of_policy without KeepLapsed;
            expiry: an_open_connection_outlives_its_record_while_some_rule_names_it without KeepLapsedByName;
            restarts: rules_and_sets_stay_while_the_enforcer_is_away without KeepOnExit;
            restarts: a_restarted_enforcer_changes_nothing_that_is_right without AdoptKernel;
            restarts: a_source_that_is_gone_at_start_counts_as_it_was_known_last without KeepObjects;
            restarts: records_stay_when_dnsd_restarts without AccumulateAddresses;
            restarts: what_was_told_last_is_known_although_dnsd_has_ended without TellRest;
            restarts: cleanup_removes_every_trace_of_ours_and_nothing_of_others without CleanUp;
            changes: a_policy_that_comes_later_works_from_history without KeepHistory;
            changes: a_change_of_policy_ends_what_it_forbids_and_nothing_else without Generation;
            changes: a_change_of_policy_ends_what_only_the_other_side_sends without Revoke;
            changes: a_program_learns_at_once_that_its_connection_is_forbidden without Revoke;
            changes: only_what_is_open_to_members_that_go_is_asked_again without AskMembers;
            changes: a_client_on_the_node_learns_that_a_server_does_not_want_it_any_more without Revoke;
            changes: a_bad_policy_file_is_named_and_what_worked_stays_in_force without KeepLastGood;
            unknown: a_new_pod_sends_nothing_before_its_policy_is_in_force without CloseUnknown;
            unknown: a_node_that_booted_without_its_source_closes_pods_until_it_answers without CloseUnknown;
            unknown: a_new_pod_is_judged_by_its_policy_as_soon_as_it_is_known without CloseUnknown;
            rules: a_port_range_holds_at_its_edges_in_both_directions_and_families without MatchPorts;
            rules: an_exception_of_an_ip_block_is_refused without HonourExcept;
            rules: selectors_choose_who_may_reach_whom without MatchPeers;
            rules: what_two_policies_allow_at_a_port_follows_each_of_them without MatchPeers;
            rules: a_selected_pod_is_isolated_in_the_named_direction_alone without Isolate;
            rules: tiers_decide_in_their_order without TierOrder;
            kinds: the_annotation_of_2016_isolates_a_namespace_and_its_objects_open_it without Isolate;
            kinds: the_baseline_decides_for_pods_that_no_network_policy_isolates without TierOrder;
            kinds: an_admin_policy_decides_ingress_before_network_policies without TierOrder;
            kinds: a_named_port_is_the_number_that_the_reached_pod_gives_it without MatchPorts;
            kinds: nodes_are_denied_by_their_labels_as_they_come_go_and_change without MatchPeers;
            kinds: an_end_port_that_is_edited_moves_the_end_of_what_is_open without MatchPorts;
            kinds: a_kubelet_probes_pods_that_nobody_else_reaches without Isolate;
            firewall: what_is_external_is_refused_but_for_names_that_are_listed without MatchPeers;
            firewall: a_firewall_of_icmp_refuses_echo_and_nothing_else without MatchPeers;
            firewall: nodes_of_a_selector_are_refused_at_all_their_addresses without MatchPeers;
            firewall: who_connects_to_a_pod_gets_replies_though_the_pod_may_reach_nobody without PassReplies;
            protocols: echo_passes_by_a_rule_without_ports_alone without Isolate;
            protocols: neighbours_are_found_where_everything_is_denied without PassNeighbours;
            protocols: errors_of_path_mtu_reach_who_may_send_and_no_other_icmp_does without PassErrors;
            protocols: a_rule_of_sctp_opens_sctp_alone_and_one_of_tcp_does_not without MatchPorts;
            protocols: datagrams_that_nobody_answers_are_judged_once_and_again_when_the_policy_changes without Generation;
            protocols: fragments_share_the_verdict_of_their_datagram without MatchPorts;
            protocols: a_port_of_the_host_is_judged_as_the_port_of_the_container without MatchPorts;
            dns: dns_rules_that_were_written_for_kube_dns_go_on_working without StandIn;
            neighbours: what_others_flush_is_put_right_within_five_seconds_and_it_is_said_whose_doing_it_was without Notice;
            neighbours: what_others_flush_where_the_kernel_tells_of_nothing_is_put_right_as_soon without Notice;
            neighbours: what_others_flush_while_news_are_lost_is_put_right_all_the_same without HearOverrun;
            neighbours: what_others_accept_is_judged_first_and_where_it_is_not_that_is_said without JumpInFront;
            neighbours: the_rules_follow_the_kubelet_to_the_other_flavour_without_a_gap without FollowFlavour;
            neighbours: where_the_programs_for_ipv6_are_missing_ipv4_is_enforced_and_the_node_is_not_ready without OneFamilyAlone;
            neighbours: an_enforcer_refuses_to_start_where_others_write_its_marks without CheckMarks;
            exposure: a_service_leads_no_pod_to_what_is_denied without MatchPeers;
            exposure: a_client_outside_is_refused_where_a_service_leads_to_what_is_denied without RejectExposure;
            services: a_service_is_judged_by_the_pod_behind_it_and_its_port without MatchPeers;
            services: a_client_of_a_node_port_is_itself_until_another_node_masquerades without MatchPeers;
            services: a_node_port_is_the_pod_behind_it_here_and_a_node_elsewhere without MatchPeers;
            services: what_kube_proxy_accepts_is_judged_though_it_comes_later without Isolate;
            services: no_network_policy_keeps_a_pod_from_itself_and_a_cluster_wide_one_does without Hairpin;
            apiserver: the_api_server_is_refused_by_every_way_that_leads_there without MatchPeers;
            apiserver: the_own_node_is_where_packets_start_and_not_what_they_bear without Isolate;
            apiserver: an_answer_from_another_address_is_the_own_nodes_or_nobodys without Isolate;
            apiserver: a_node_is_refused_at_what_it_reports_of_itself without ReportAddresses;
            reuse: a_pod_at_a_used_address_inherits_no_connection without Revoke;
            reuse: what_dnsd_told_is_told_again_to_the_same_pod_alone without ForgetPredecessor;
            reuse: the_next_pod_at_an_address_is_told_for_itself without ForgetPredecessor;
            reuse: another_cable_is_another_pods_before_the_source_says_so without SuspectCables;
            reuse: what_was_open_before_the_first_start_is_judged without Revoke;
            interfaces: a_second_cable_of_a_pod_is_judged_as_the_first without FollowCables;
            interfaces: a_cluster_firewall_holds_on_an_interface_that_leads_past_the_node without GuardInside;
            interfaces: who_may_not_enter_a_pod_says_so_and_does_the_rest without GuardInside;
            interfaces: a_filter_on_a_pods_link_is_told_and_counted without NameFastPaths;
            events: a_denied_connection_is_told_with_its_rule_and_the_name_that_the_pod_was_told without TellDenied;
            events: a_denied_ingress_is_told_of_the_pod_that_was_to_be_reached without TellDenied;
            events: what_no_rule_of_a_pod_denies_is_told_with_its_reason without TellDenied;
            events: a_flood_is_told_in_few_lines_and_in_sums_that_are_right without LimitTelling;
            events: a_refused_sender_hears_it_at_once_in_both_directions_and_families without TellSender;
            events: a_client_outside_is_reset_when_its_open_connection_is_forbidden without TellSender;
            audit: a_policy_in_audit_denies_nothing_and_says_once_what_it_would_deny without TellAudit;
            audit: a_policy_that_leaves_audit_ends_what_it_forbids without Generation;
            audit: a_namespace_in_audit_has_no_policy_in_force without TellAudit;
            audit: a_node_in_audit_denies_nothing_and_says_what_policies_would_deny without TellAudit;
            audit: what_a_policy_in_audit_allows_by_name_is_as_the_pod_was_told without PerPodRecords;
            bridges: pods_of_one_bridge_are_judged_where_that_is_enabled without JudgeBridges;
            bridges: pods_of_one_bridge_are_judged_in_the_legacy_flavour_as_well without JudgeBridges;
            bridges: a_pod_on_a_bridge_meets_itself_by_a_service_and_its_neighbour_does_not without Hairpin;
            bridges: a_bridge_that_is_not_judged_is_told without NameFastPaths;
            bridges: a_neighbours_address_gains_nothing_behind_another_port without KnowPorts;
            cgroups: names_hold_by_cgroup_in_the_ebpf_backend without PerPodRecords;
        }
    };
}

macro_rules! list {
    ($($chapter:ident: $story:ident without $switch:ident;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: stringify!($story),
            switch: Switch::$switch,
            story: $chapter::$story,
        }),*];
    };
}

with_every_scenario!(list);
