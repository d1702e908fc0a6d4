//! The steps, in the order in which they are played.

use super::{DemoError, Seen, changes, deployment::Deployment, lifecycle, names};

/// One thing to be seen.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) title: &'static str,
    /// Sentences for who has not read the documentation.
    pub(super) about: &'static [&'static str],
    pub(super) expected: &'static str,
    pub(super) act: fn(&mut Deployment) -> Result<Seen, DemoError>,
}

pub(super) const STORY: &[Step] = &[
    Step {
        title: "Policies are put into force",
        about: &[
            "The files of deploy/examples/by-name/ are copied into the folder that the enforcer watches. Until then \
             every pod may connect everywhere.",
        ],
        expected: "an address that nobody was told: open before, refused after",
        act: names::apply_the_examples,
    },
    Step {
        title: "A pod asks for an allowed name and connects",
        about: &["Stock programs; the pod's resolv.conf names dnsd."],
        expected: "connected to the address that it was told",
        act: names::ask_and_connect,
    },
    Step {
        title: "An answer is held until the kernel is ready",
        about: &[
            "dnsd gives an answer to the pod only when the enforcer has put its addresses into the kernel: the \
             first connection finds the door open.",
        ],
        expected: "held some milliseconds, then connected",
        act: lifecycle::see_an_answer_held,
    },
    Step {
        title: "The same pod is refused another name's address",
        about: &["Every name is answered; being answered is not being allowed."],
        expected: "answered, connection refused",
        act: names::try_a_name_that_is_not_allowed,
    },
    Step {
        title: "A pod that did not ask is refused the same address",
        about: &[
            "shop/other may use the same name, but an address counts only for the pod that was told it.",
        ],
        expected: "refused before it asks, connected after",
        act: names::try_as_another_pod,
    },
    Step {
        title: "A wildcard name",
        about: &["The policy says *.cdn.example.test: names below it, not the name itself."],
        expected: "img.eu.cdn.example.test connected, cdn.example.test refused",
        act: names::try_a_wildcard,
    },
    Step {
        title: "A name with 120 addresses",
        about: &["The answer is too long for a datagram; getent asks again over TCP."],
        expected: "120 addresses told, 120 connected",
        act: names::use_every_address_of_many,
    },
    Step {
        title: "Between pods, both sides have a word",
        about: &["tools/worker lets shop/other in at the ports 8000 to 8010, and nobody else."],
        expected: "shop/other: 8010 connected, 8011 refused; shop/client: 8010 refused",
        act: names::connect_between_pods,
    },
    Step {
        title: "The TTL runs out",
        about: &["brief.cdn.example.test has a TTL of 2 s; in this demo an address outlives its TTL by 1 s."],
        expected: "new connections refused after 3 s, the open one goes on",
        act: lifecycle::let_a_record_run_out,
    },
    Step {
        title: "A policy changes",
        about: &[
            "api.example.test is taken out of the policy while a program is connected to it. Nothing waits for \
             the program to send, and its other connections are left alone.",
        ],
        expected: "ended within 1 s, and the program is told; the other connection goes on",
        act: changes::end_a_connection,
    },
    Step {
        title: "The enforcer is killed and comes back",
        about: &[
            "shop/client looks up, connects and keeps connections all the while. Lost: an allowed connection \
             fails. Leaked: a forbidden one comes about. Late: an address is told before the kernel has it, \
             because dnsd holds no answer longer than 200 ms.",
        ],
        expected: "lost 0, leaked 0",
        act: lifecycle::kill_the_enforcer,
    },
    Step {
        title: "The enforcer is killed in the middle of a change",
        about: &["Eight times, each time a little later after a policy was written."],
        expected: "the old policy or the new one, and the new one soon after; lost 0, leaked 0",
        act: changes::kill_in_the_middle,
    },
    Step {
        title: "dnsd is killed and comes back",
        about: &["Without dnsd nobody answers; what was told before stays usable."],
        expected: "lost 0, leaked 0",
        act: lifecycle::kill_dnsd,
    },
    Step {
        title: "Both daemons count for Prometheus",
        about: &[],
        expected: "both scraped; answers, allows and denies counted",
        act: lifecycle::scrape_both,
    },
];

/// The last one: nothing can be played after it.
pub(super) const CLEANUP: Step = Step {
    title: "The daemons end; cleanup removes their traces",
    about: &["A daemon that ends leaves its rules and sets in force. One command removes them."],
    expected: "rules and sets stay after SIGTERM, none after cleanup",
    act: lifecycle::clean_up,
};
