/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What is judged, and what is told of it when it is denied. */
#ifndef EGRET_EVENTS_H
#define EGRET_EVENTS_H

#include "maps.h"

/* What is judged: the other end, and the destination port. */
struct flow {
	struct address peer;
	__u16 port; /* host order */
	__u8 transport;
	/* The pod's flow to this peer was allowed before: records whose time is over still count. */
	__u8 was_allowed;
	/* The same connection was counted where it was allowed first. */
	__u8 is_counted;
	__u8 icmp_type;
	/* A packet filter judges as well. */
	__u8 is_backed;
	/* The peer is where the packet goes, not what the pod asked for. */
	__u8 is_translated;
	/* A Service led back to the pod. */
	__u8 is_itself;
	/* The node translates the peer to no other address. */
	__u8 is_final;
	__u8 unused[6];
	/* Set where it is denied; with ACTION_WOULD_DENY where it is allowed, and policies in audit would deny it. */
	struct counter_key denied_by;
};

static __always_inline int would_be_denied(const struct flow *flow)
{
	return flow->denied_by.action == ACTION_WOULD_DENY;
}

/* Counts what is told of a reason in this second: beyond the limit it is withheld, and counted as such. */
static __always_inline struct reason_told *may_tell(const struct reason *reason)
{
	const __u32 zero = 0;
	__u32 *limit = bpf_map_lookup_elem(&egret_event_limit, &zero);
	struct reason_told fresh = { .second = bpf_ktime_get_boot_ns() / 1000000000ULL };
	struct reason_told *told;

	if (!limit || !*limit)
		return 0;
	told = bpf_map_lookup_elem(&egret_reasons, reason);
	if (!told) {
		bpf_map_update_elem(&egret_reasons, reason, &fresh, BPF_NOEXIST);
		told = bpf_map_lookup_elem(&egret_reasons, reason);
		if (!told)
			return 0;
	}
	if (told->second != fresh.second) {
		told->second = fresh.second;
		told->told = 0;
	}
	if (told->told >= *limit) {
		__sync_fetch_and_add(&told->withheld, 1);
		return 0;
	}
	__sync_fetch_and_add(&told->told, 1);
	return told;
}

/* Where something was denied. */
struct place {
	__u64 pod;
	__u16 local_port;
	__u8 is_outgoing;
};

/* Tells the reader of events what was denied, and by which rule. `has_task` is a constant: not every kind of program may
 * ask for the process. */
static __always_inline void tell(const struct flow *flow, const struct place *place, const struct address *local,
				 int has_task)
{
	__u8 is_revoked = flow->was_allowed && !would_be_denied(flow);
	struct reason reason = { .counter = flow->denied_by, .is_revoked = is_revoked };
	struct reason_told *told = may_tell(&reason);
	struct event *event;

	if (!told)
		return;
	event = bpf_ringbuf_reserve(&egret_events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&told->withheld, 1);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->pod = place->pod;
	event->counter = flow->denied_by;
	event->local = *local;
	event->peer = flow->peer;
	event->local_port = place->local_port;
	event->peer_port = flow->port;
	event->transport = flow->transport;
	event->icmp_type = flow->icmp_type;
	event->is_outgoing = place->is_outgoing;
	event->is_revoked = is_revoked;
	if (has_task) {
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->command, sizeof(event->command));
	}
	bpf_ringbuf_submit(event, 0);
}

/* For programs that may not ask for the process. */
GLOBAL int tell_of_packet(const struct flow *flow, const struct place *place, const struct address *local)
{
	if (flow && place && local)
		tell(flow, place, local, 0);
	return 0;
}

#endif
