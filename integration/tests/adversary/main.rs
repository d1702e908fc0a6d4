//! Attacks by root in the network namespace of a pod: any packet that an interface can send.
//!
//! Each scenario has an attack and a control: the same traffic with the true source, which passes. A scenario does not
//! depend on how the daemons enforce; it runs under each enforcement of the list below.

#![allow(
    clippy::disallowed_methods,
    reason = "stories are about real packets, which take real time"
)]
#![allow(clippy::unwrap_used, reason = "a story says what it expects")]

use egret_integration::World;

#[path = "../scenarios/backend_override.rs"]
#[allow(dead_code, reason = "other stories run on other backends, too")]
mod backend_override;
#[path = "../scenarios/deployment.rs"]
#[allow(dead_code, reason = "the words of other stories, too")]
mod deployment;
mod words;

mod replies;
mod sources;
mod flows;
mod errors;
mod further;
mod shapes;
mod tunnels;
mod bridges;
mod discovery;

use deployment::{Setup, TestResult};

/// The enforcement under which a scenario runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enforcement {
    backend: &'static str,
    arguments: &'static [&'static str],
}

impl Enforcement {
    pub(crate) fn of(self, setting: Setup) -> Setup {
        setting.backend(self.backend).enforcer(self.arguments)
    }
}

pub(crate) type Story = fn(&mut World, Enforcement) -> TestResult;

/// Runs a scenario in a world of its own, and checks that nothing is left of it.
fn tell(story: Story, enforcement: Enforcement) -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    story(&mut world, enforcement)?;
    world.assert_nothing_left();
    Ok(())
}

macro_rules! stories {
    ($($chapter:ident: $story:ident;)*) => {
        stories!(netfilter_nft: "netfilter", ["--iptables", "nft"], $($chapter: $story;)*);
        stories!(netfilter_legacy: "netfilter", ["--iptables", "legacy"], $($chapter: $story;)*);
    };
    ($name:ident: $backend:literal, $arguments:expr, $($chapter:ident: $story:ident;)*) => {
        mod $name {
            use super::{Enforcement, TestResult, tell};

            const ENFORCEMENT: Enforcement = Enforcement { backend: $backend, arguments: &$arguments };

            $(
                #[test]
                fn $story() -> TestResult {
                    tell(super::$chapter::$story, ENFORCEMENT)
                }
            )*
        }
    };
}

stories! {
    replies: a_datagram_of_its_own_making_opens_no_way_back_to_an_address_outside;
    replies: a_segment_of_its_own_making_opens_no_way_back_to_an_address_outside;
    replies: a_packet_of_its_own_making_opens_no_way_back_to_a_pod_that_nobody_may_enter;
    replies: a_packet_of_its_own_making_opens_no_way_back_to_a_node_that_is_denied;
    sources: nobody_enters_a_pod_in_the_name_of_one_who_may;
    sources: nothing_leaves_the_node_in_anothers_name;
    sources: what_is_sent_in_anothers_name_is_counted_and_told;
    flows: a_flow_that_one_pod_opens_in_anothers_name_is_judged_when_the_other_uses_it;
    flows: segments_in_a_neighbours_name_do_not_end_its_connection;
    flows: a_reset_in_a_neighbours_name_does_not_end_a_connection_whose_record_is_over;
    errors: an_error_that_a_pod_makes_up_ends_no_flow_of_its_neighbour;
    errors: an_error_that_a_pod_makes_up_changes_no_route_of_its_neighbour;
    errors: an_error_that_a_pod_makes_up_ends_no_flow_of_the_node;
    errors: errors_of_those_whom_they_concern_arrive;
    tunnels: what_a_pod_wraps_in_vxlan_is_not_forwarded;
    tunnels: what_a_pod_wraps_in_ip_or_gre_does_not_come_to_the_node;
    tunnels: what_a_pod_wraps_in_geneve_does_not_come_to_the_node;
    bridges: a_question_in_a_neighbours_name_teaches_nothing_on_a_bridge;
    bridges: nobody_enters_a_pod_in_its_neighbours_name_on_a_bridge;
    discovery: a_pod_and_its_node_discover_each_other_though_all_is_denied;
    discovery: a_pod_and_its_node_talk_by_link_local_addresses;
    discovery: a_pod_is_no_router_of_its_node;
    discovery: a_pod_that_says_it_is_its_neighbour_is_not_believed;
    further: nobody_answers_a_neighbours_question_in_anothers_name;
    further: forged_sources_take_no_room_in_connection_tracking;
    further: what_a_helper_expects_is_judged_as_any_connection;
    further: a_service_leads_nobody_to_a_pod_in_anothers_name;
    further: nothing_leaves_by_a_second_cable_in_anothers_name;
    shapes: a_packet_of_unusual_shape_is_judged_as_any_other;
    shapes: a_source_that_no_host_may_have_gets_nowhere;
    shapes: a_source_route_by_way_of_the_node_leads_nowhere;
}
