//! `cache`.

use super::{Mode, Row, Step, millis, seconds};
use Step::{Again, Ask, Counts, Remembers, Wait};

const AGAIN: &[Step] = &[Again("a60.test A")];
/// Beyond the least TTL that a cache keeps an answer for.
const LONG: Step = Wait(seconds(7));

pub(super) const ROWS: &[Row] = &[
    Row::new("cache", "forward . UP1", "forward . UP1\ncache", AGAIN),
    Row::new(
        "cache",
        "forward . UP1\ncache 30",
        "forward . UP1\ncache 120",
        &[Ask("a300.test A")],
    )
    .case("TTL"),
    Row::new(
        "cache",
        "forward . UP1\ncache 60",
        "forward . UP1\ncache 60 kept.test",
        &[Again("a60.test A"), Again("a60.kept.test A")],
    )
    .case("zones"),
    Row::new(
        "cache",
        "forward . UP1\ncache 1",
        "forward . UP1\ncache 30",
        &[Ask("a5.test A"), Ask("nx.test A")],
    )
    .case("both"),
    Row::new(
        "cache success",
        "forward . UP1\ncache {\n success 9984 30\n}",
        "forward . UP1\ncache {\n success 9984 120\n}",
        &[Ask("a300.test A"), Ask("nx.test A")],
    ),
    Row::new(
        "cache success",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n success 9984 3600 60\n}",
        &[Ask("a10.test A")],
    )
    .case("MINTTL"),
    Row::new(
        "cache success",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n success 1024\n}",
        &[Remembers {
            names: 1_200,
            under: "a3600",
        }],
    )
    .case("CAPACITY"),
    Row::new(
        "cache denial",
        "forward . UP1\ncache {\n denial 9984 30\n}",
        "forward . UP1\ncache {\n denial 9984 3600\n}",
        &[Ask("nx.test A"), Ask("nodata.test A"), Ask("a300.test A")],
    ),
    Row::new(
        "cache denial",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n denial 9984 1800 300\n}",
        &[Ask("nx.test A"), Ask("nodata.test A")],
    )
    .case("MINTTL"),
    Row::new(
        "cache denial",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n denial 1024\n}",
        &[Remembers {
            names: 1_200,
            under: "nx",
        }],
    )
    .case("CAPACITY"),
    Row::new(
        "cache prefetch",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n prefetch 2 1m 90%\n}",
        &[
            Ask("a30.test A"),
            Ask("a30.test A"),
            Ask("a30.test A"),
            Wait(seconds(4)),
            Ask("a30.test A"),
            Step::Anew,
        ],
    ),
    Row::new(
        "cache prefetch",
        "forward . UP1\ncache {\n prefetch 50 1m 90%\n}",
        "forward . UP1\ncache {\n prefetch 2 1m 90%\n}",
        &[
            Ask("a30.test A"),
            Ask("a30.test A"),
            Ask("a30.test A"),
            Wait(seconds(4)),
            Ask("a30.test A"),
            Step::Anew,
        ],
    )
    .case("AMOUNT"),
    Row::new(
        "cache prefetch",
        "forward . UP1\ncache {\n prefetch 2 1s 90%\n}",
        "forward . UP1\ncache {\n prefetch 2 1m 90%\n}",
        &[
            Ask("a30.test A"),
            Ask("a30.test A"),
            Ask("a30.test A"),
            Wait(seconds(4)),
            Ask("a30.test A"),
            Step::Anew,
        ],
    )
    .case("DURATION"),
    Row::new(
        "cache prefetch",
        "forward . UP1\ncache {\n prefetch 2 1m 10%\n}",
        "forward . UP1\ncache {\n prefetch 2 1m 90%\n}",
        &[
            Ask("a30.test A"),
            Ask("a30.test A"),
            Ask("a30.test A"),
            Wait(seconds(4)),
            Ask("a30.test A"),
            Step::Anew,
        ],
    )
    .case("PERCENTAGE"),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n serve_stale\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Code(2)),
            Ask("a5.test A"),
        ],
    ),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache {\n serve_stale 1h\n}",
        "forward . UP1\ncache {\n serve_stale 1s\n}",
        &[
            Ask("a5.test A"),
            Wait(seconds(9)),
            Step::Mode(1, Mode::Code(2)),
            Ask("a5.test A"),
        ],
    )
    .case("DURATION"),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache {\n serve_stale 1h immediate\n}",
        "forward . UP1\ncache {\n serve_stale 1h verify\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Changed),
            Ask("a5.test A"),
            Step::Anew,
        ],
    )
    .case("verify"),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache {\n serve_stale 1h verify 8s\n}",
        "forward . UP1\ncache {\n serve_stale 1h verify 100ms\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Slow(millis(1_500))),
            Ask("a5.test A"),
            Step::Anew,
        ],
    )
    .case("VERIFY_TIMEOUT"),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache {\n serve_stale 1h immediate\n}",
        "forward . UP1\ncache {\n serve_stale 1h immediate 30s\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Code(2)),
            Ask("a5.test A"),
            Step::Anew,
        ],
    )
    .case("RESPONSE_TTL"),
    Row::new(
        "cache serve_stale",
        "forward . UP1\ncache {\n serve_stale 1h immediate 0s\n}",
        "forward . UP1\ncache {\n serve_stale 1h immediate 0s 1m\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Code(2)),
            Ask("a5.test A"),
            Step::Anew,
            Wait(seconds(1)),
            Ask("a5.test A"),
            Step::Anew,
        ],
    )
    .case("FAILURE_RECHECK"),
    Row::new(
        "cache serve_stale_policy",
        "forward . UP1\ncache {\n serve_stale 1h\n}",
        "forward . UP1\ncache {\n serve_stale 1h\n serve_stale_policy prefer_positive\n}",
        &[
            Ask("a5.test A"),
            LONG,
            Step::Mode(1, Mode::Denied),
            Ask("a5.test A"),
            Step::Anew,
            Wait(seconds(1)),
            Ask("a5.test A"),
        ],
    ),
    Row::new(
        "cache servfail",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n servfail 0\n}",
        &[Again("bad.test A")],
    ),
    Row::new(
        "cache servfail",
        "cache {\n servfail 0\n}\nforward . UP1 {\n max_fails 0\n read_timeout 300ms\n}",
        "cache\nforward . UP1 {\n max_fails 0\n read_timeout 300ms\n}",
        &[Ask("a60.test A"), Step::Mode(1, Mode::Honest), Ask("a60.test A")],
    )
    .case("no answer")
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "cache disable",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n disable success off.test\n}",
        &[
            Again("a60.off.test A"),
            Again("nx.off.test A"),
            Again("a60.test A"),
        ],
    ),
    Row::new(
        "cache disable",
        "forward . UP1\ncache {\n disable success\n}",
        "forward . UP1\ncache {\n disable denial off.test\n}",
        &[
            Again("a60.off.test A"),
            Again("nx.off.test A"),
            Again("nx.test A"),
        ],
    )
    .case("denial"),
    Row::new(
        "cache keepttl",
        "forward . UP1\ncache",
        "forward . UP1\ncache {\n keepttl\n}",
        &[Counts {
            question: "a60.test A",
            after: millis(2_200),
        }],
    ),
];
