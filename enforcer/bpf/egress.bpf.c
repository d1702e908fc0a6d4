// SPDX-License-Identifier: Apache-2.0
/* Judges what a pod opens, where it opens it: connect(2), and sendmsg(2) of sockets that are not
 * connected. A denied call fails with EPERM at once, in the process that made it.
 *
 * The contexts are those of the UAPI header, whose layout is the same on every kernel: nothing has to be
 * relocated, and one object serves all architectures of this byte order. */
#include "judge.h"

#define SOCK_RAW 3
#define AF_INET6 10

#define TCP_SYN 0x02

/* How long a UDP flow lives without a datagram: nf_conntrack_udp_timeout_stream. */
#define UDP_FLOW_NANOSECONDS (120ULL * 1000000000ULL)

static __always_inline struct udp_key key_of_udp(const struct pod *pod, const struct flow *flow, __u16 local_port)
{
	struct udp_key key = { .pod = pod->id,
			       .peer = flow->peer,
			       .peer_port = flow->port,
			       .local_port = local_port,
			       .transport = flow->transport };

	return key;
}

/* Signed, for another processor may have seen the flow after this one looked at the clock. */
static __always_inline int is_alive(const struct udp_flow *flow, __u64 now)
{
	return (__s64)(now - flow->seen) < (__s64)UDP_FLOW_NANOSECONDS;
}

/* Remembers in the socket what was allowed, so that its packets are not judged one by one. Without memory
 * for it they are. */
static __always_inline void remember(struct bpf_sock *socket, const struct pod *pod, const struct flow *flow,
				     __u8 opened_by)
{
	struct socket_state *state;

	/* Its packets may be anything. */
	if (socket->type == SOCK_RAW)
		return;
	state = bpf_sk_storage_get(&egret_sockets, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return;
	/* No generation while the rest changes: another processor may read. */
	state->generation = 0;
	state->peer = flow->peer;
	state->port = flow->port;
	state->transport = flow->transport;
	state->opened_by = opened_by;
	state->generation = pod->generation;
}

static __always_inline int is_about(const struct socket_state *state, const struct flow *flow)
{
	return state->port == flow->port && state->transport == flow->transport && same(&state->peer, &flow->peer);
}

static __always_inline __u8 transport_of(__u32 protocol)
{
	/* What leaves the pod for an MPTCP socket is TCP. */
	return protocol == IPPROTO_MPTCP ? IPPROTO_TCP : protocol;
}

static __always_inline int verdict(struct bpf_sock_addr *ctx, struct address peer)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = ctx->sk;
	struct flow flow = {};
	int result;

	if (!pod->programmed) {
		count_unruled(TIER_UNPROGRAMMED, ACTION_DENY, EGRESS);
		return DENY;
	}
	flow.peer = peer;
	flow.port = bpf_ntohs((__u16)ctx->user_port);
	flow.transport = transport_of(ctx->protocol);
	if (is_self(pod, &flow.peer))
		return ALLOW;
	flow.is_backed = pod->behind == BEHIND_FILTER;
	/* Judged by the address to which the node translates this one. */
	if (pod->behind != BEHIND_NOTHING && may_be_translated(&flow.peer))
		return ALLOW;
	flow.is_final = 1;
	/* A socket without a port has sent nothing yet, so it has no flow. */
	if (flow.transport == IPPROTO_UDP && socket && socket->src_port) {
		struct udp_key key = key_of_udp(pod, &flow, socket->src_port);
		struct udp_flow *known = bpf_map_lookup_elem(&egret_udp, &key);

		if (known && is_alive(known, bpf_ktime_get_boot_ns())) {
			/* What the peer opened is judged where the packet leaves. */
			if (known->opened_by == OPENED_BY_PEER || known->generation == pod->generation)
				return ALLOW;
			flow.was_allowed = 1;
		}
	}
	result = judge(pod, &flow, EGRESS);
	if (result == DENY || would_be_denied(&flow)) {
		struct address local = own_address(pod, flow.peer.family);
		struct place place = { .pod = pod->id, .is_outgoing = 1 };

		place.local_port = socket ? socket->src_port : 0;
		tell(&flow, &place, &local, 1);
	}
	if (result == ALLOW && socket)
		remember(socket, pod, &flow, OPENED_BY_POD);
	return result;
}

SEC("cgroup/connect4")
int egret_connect4(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;
}

SEC("cgroup/connect6")
int egret_connect6(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v6(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3])) ? 1 : 0;
}

SEC("cgroup/sendmsg4")
int egret_sendmsg4(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;
}

SEC("cgroup/sendmsg6")
int egret_sendmsg6(struct bpf_sock_addr *ctx)
{
	return verdict(ctx, v6(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3])) ? 1 : 0;
}

/* Whether a program of the pod listens at the port from which the socket sends: the socket was accepted. Asked
 * of sockets alone that are older than the programs. */
static __always_inline int is_listened_at(struct __sk_buff *skb, const struct address *local, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *listener;
	__u32 size;
	int listens;

	if (local->family == FAMILY_V4) {
		tuple.ipv4.daddr = local->words[0];
		tuple.ipv4.dport = bpf_htons(port);
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.daddr, local->words, 16);
		tuple.ipv6.dport = bpf_htons(port);
		size = sizeof(tuple.ipv6);
	}
	listener = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return 0;
	listens = listener->state == BPF_TCP_LISTEN;
	bpf_sk_release(listener);
	return listens;
}

/* A flow of the pod's: as the peer opened it, its destination port is the pod's own. */
static __always_inline int judge_opened(const struct pod *pod, struct flow *flow, __u16 local_port, __u8 opened_by)
{
	if (opened_by == OPENED_BY_PEER) {
		__u16 port = flow->port;
		int result;

		/* What the node itself sends to the pod is not judged. */
		if (bpf_map_lookup_elem(&egret_node, &flow->peer))
			return ALLOW;
		flow->port = local_port;
		result = judge(pod, flow, INGRESS);
		flow->port = port;
		return result;
	}
	return judge(pod, flow, EGRESS);
}

/* A packet of a TCP connection, in either direction. */
static __always_inline int judge_stream(struct __sk_buff *skb, const struct pod *pod, struct bpf_sock *socket,
					struct flow *flow, const struct address *local, __u16 local_port)
{
	struct socket_state *state = bpf_sk_storage_get(&egret_sockets, socket, 0, 0);
	__u8 opened_by;

	if (state && is_about(state, flow)) {
		if (state->generation == pod->generation)
			return ALLOW;
		flow->was_allowed = 1;
		opened_by = state->opened_by;
	} else if (socket->state == BPF_TCP_SYN_SENT) {
		/* Also a subflow of MPTCP, which no connect(2) opens. */
		opened_by = OPENED_BY_POD;
	} else {
		opened_by = is_listened_at(skb, local, local_port) ? OPENED_BY_PEER : OPENED_BY_POD;
	}
	if (judge_opened(pod, flow, local_port, opened_by) == DENY) {
		if (socket->state != BPF_TCP_SYN_SENT)
			report_denied(pod, flow, local, local_port);
		return DENY;
	}
	remember(socket, pod, flow, opened_by);
	return ALLOW;
}

/* A datagram, in either direction. `opens` says who opens a flow that is not known. */
static __always_inline int judge_datagram(const struct pod *pod, struct bpf_sock *socket, struct flow *flow,
					  const struct address *local, __u16 local_port, __u8 opens)
{
	struct socket_state *state = bpf_sk_storage_get(&egret_sockets, socket, 0, 0);
	struct udp_key key = key_of_udp(pod, flow, local_port);
	struct udp_flow opened = { .seen = bpf_ktime_get_boot_ns(), .generation = pod->generation };
	int is_remembered = state && state->generation == pod->generation && is_about(state, flow);
	struct udp_flow *known;

	/* A connected socket receives from its peer alone. */
	if (is_remembered && socket->dst_port && !flow->is_translated)
		return ALLOW;
	known = bpf_map_lookup_elem(&egret_udp, &key);
	if (known && !is_alive(known, opened.seen))
		known = 0;
	if (known && known->generation == pod->generation &&
	    (!flow->is_translated || known->opened_by == OPENED_BY_PEER)) {
		known->seen = opened.seen;
		return ALLOW;
	}
	/* A peer that sends first after a change of policy has not opened what the pod had. */
	flow->was_allowed = known || (state && is_about(state, flow));
	if (known)
		opened.opened_by = known->opened_by;
	else
		opened.opened_by = flow->was_allowed ? state->opened_by : opens;
	/* sendmsg(2) was judged a moment ago. */
	if (!(is_remembered && opens == OPENED_BY_POD && !flow->is_translated) &&
	    judge_opened(pod, flow, local_port, opened.opened_by) == DENY) {
		if (socket->dst_port && flow->transport == IPPROTO_UDP)
			report_denied(pod, flow, local, local_port);
		return DENY;
	}
	bpf_map_update_elem(&egret_udp, &key, &opened, BPF_ANY);
	if (socket->dst_port)
		remember(socket, pod, flow, opened.opened_by);
	return ALLOW;
}

/* Protocols whose flows are remembered by addresses and ports, not by the socket alone. */
static __always_inline int has_flows(__u8 transport)
{
	return transport == IPPROTO_UDP || transport == IPPROTO_SCTP;
}

/* Notes who opened a flow of datagrams, for those that the pod sends: the packet filter of the node judges packets. */
GLOBAL int note_datagram(const struct pod *pod, const struct packet *packet, __u8 direction)
{
	struct udp_flow opened = { .seen = bpf_ktime_get_boot_ns() };
	struct udp_key key = {};
	struct udp_flow *known;

	if (!pod || !packet || !packet->is_whole || packet->transport != IPPROTO_UDP)
		return ALLOW;
	key.pod = pod->id;
	key.transport = packet->transport;
	key.peer = direction == EGRESS ? packet->destination : packet->source;
	key.peer_port = direction == EGRESS ? packet->destination_port : packet->source_port;
	key.local_port = direction == EGRESS ? packet->source_port : packet->destination_port;
	known = bpf_map_lookup_elem(&egret_udp, &key);
	if (known && is_alive(known, opened.seen)) {
		known->seen = opened.seen;
		return ALLOW;
	}
	opened.generation = pod->generation;
	opened.opened_by = direction == EGRESS ? OPENED_BY_POD : OPENED_BY_PEER;
	bpf_map_update_elem(&egret_udp, &key, &opened, BPF_ANY);
	return ALLOW;
}

static __always_inline int has_no_rules(const struct pod *pod)
{
	return !pod->egress.count && !pod->ingress.count && !pod->audit_egress.count && !pod->audit_ingress.count;
}

static __always_inline int is_echo_reply(const struct packet *packet)
{
	return packet->transport == IPPROTO_ICMPV6 ? packet->icmp_type == 129 :
						     packet->transport == IPPROTO_ICMP && packet->icmp_type == 0;
}

static __always_inline int is_own(const struct pod *pod, __u32 family, const __u32 *words)
{
	for (__u32 i = 0; i < MAX_OWN_ADDRESSES; i++) {
		const struct address *own = &pod->own[i];

		if (own->family != family || own->words[0] != words[0])
			continue;
		if (family == FAMILY_V4 || (own->words[1] == words[1] && own->words[2] == words[2] && own->words[3] == words[3]))
			return 1;
	}
	return 0;
}

/* Whether a packet is of the flow of which its socket keeps a verdict under the pod's present generation. Only of connected
 * sockets, and of packets whose headers are plain and whole: all others are parsed and judged. */
static __always_inline int has_verdict(struct __sk_buff *skb, const struct pod *pod, __u8 direction)
{
	struct bpf_sock *socket = skb->sk;
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct plain_v4 *v4 = data;
	const struct plain_v6 *v6 = data;
	const struct socket_state *state;
	const __u32 *source, *peer;
	__u16 port;

	if (!socket || !socket->dst_port || socket->state == BPF_TCP_LISTEN)
		return 0;
	state = bpf_sk_storage_get(&egret_sockets, socket, 0, 0);
	if (!state || state->generation != pod->generation)
		return 0;
	if (state->transport != IPPROTO_TCP && state->transport != IPPROTO_UDP)
		return 0;
	if (state->peer.family == FAMILY_V4) {
		if ((void *)(v4 + 1) > end || v4->version_and_length != 0x45 || v4->transport != state->transport ||
		    (v4->fragment & bpf_htons(IP_MORE_FRAGMENTS_AND_OFFSET)))
			return 0;
		source = &v4->source;
		peer = direction == EGRESS ? &v4->destination : &v4->source;
		port = direction == EGRESS ? v4->destination_port : v4->source_port;
		if (*peer != state->peer.words[0])
			return 0;
	} else {
		if ((void *)(v6 + 1) > end || v6->version >> 4 != 6 || v6->transport != state->transport)
			return 0;
		source = v6->source;
		peer = direction == EGRESS ? v6->destination : v6->source;
		port = direction == EGRESS ? v6->destination_port : v6->source_port;
		if (peer[0] != state->peer.words[0] || peer[1] != state->peer.words[1] || peer[2] != state->peer.words[2] ||
		    peer[3] != state->peer.words[3])
			return 0;
	}
	/* Behind the translation a pod is known by its address: another one is judged here. */
	return port == bpf_htons(state->port) &&
	       (direction == INGRESS || pod->behind != BEHIND_SERVICES || is_own(pod, state->peer.family, source));
}

/* By itself, so that a packet with a verdict pays for no room on the stack. */
static __attribute__((noinline)) int judge_departure(struct __sk_buff *skb)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = skb->sk;
	struct packet packet = {};
	struct flow flow = {};
	struct place place = { .is_outgoing = 1 };
	int result;

	if (socket)
		socket = bpf_sk_fullsock(socket);
	if (!pod->programmed || !socket) {
		if (pod->behind == BEHIND_FILTER)
			return ALLOW;
		count_unruled(TIER_UNPROGRAMMED, ACTION_DENY, EGRESS);
		return DENY;
	}
	parse(skb, &packet);
	if (pod->behind == BEHIND_FILTER)
		return note_datagram(pod, &packet, EGRESS);
	if (is_self(pod, &packet.destination)) {
		/* A datagram to the pod itself in the name of another would open the way to that one. */
		if (packet.transport != IPPROTO_UDP || is_self(pod, &packet.source))
			return ALLOW;
		count_unruled(TIER_DEFAULT, ACTION_DENY, EGRESS);
		return DENY;
	}
	if (stays_on_link(packet.transport, packet.icmp_type))
		return ALLOW;
	if (!packet.is_whole) {
		count_unruled(TIER_DEFAULT, ACTION_DENY, EGRESS);
		return DENY;
	}
	flow.peer = packet.destination;
	flow.port = packet.destination_port;
	flow.transport = packet.transport;
	flow.icmp_type = packet.icmp_type;
	/* Behind the translation a pod is known by its address: what bears another one is judged here, as it is. */
	flow.is_translated = pod->behind == BEHIND_SERVICES && !is_self(pod, &packet.source) &&
			     may_be_translated(&flow.peer);
	if (flow.is_translated && bpf_map_lookup_elem(&egret_addressed, &packet.source)) {
		/* In the name of another pod. */
		count_unruled(TIER_DEFAULT, ACTION_DENY, EGRESS);
		return DENY;
	}
	if (socket->type == SOCK_RAW || (flow.transport != IPPROTO_TCP && !has_flows(flow.transport)))
		result = judge(pod, &flow, EGRESS);
	else if (has_flows(flow.transport))
		result = judge_datagram(pod, socket, &flow, &packet.source, packet.source_port, OPENED_BY_POD);
	else if (socket->state == BPF_TCP_LISTEN) /* Answers a SYN that was let in. */
		return ALLOW;
	else
		result = judge_stream(skb, pod, socket, &flow, &packet.source, packet.source_port);
	if (result == ALLOW && !would_be_denied(&flow))
		return ALLOW;
	place.pod = pod->id;
	place.local_port = packet.source_port;
	tell_of_packet(&flow, &place, &packet.source);
	return result == ALLOW ? ALLOW : DENY;
}

/* What leaves the pod's sockets: connections that were open before a change of policy, datagrams of
 * connected sockets, and what raw and ping sockets send. */
SEC("cgroup_skb/egress")
int egret_departures(struct __sk_buff *skb)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);

	if (pod->programmed && (has_no_rules(pod) || has_verdict(skb, pod, EGRESS)))
		return ALLOW;
	return judge_departure(skb);
}

static __attribute__((noinline)) int judge_arrival(struct __sk_buff *skb)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = skb->sk;
	struct packet packet = {};
	struct flow flow = {};
	struct place place = {};
	__u8 flags = 0;
	int result;

	if (socket)
		socket = bpf_sk_fullsock(socket);
	if (!pod->programmed || !socket) {
		if (pod->behind == BEHIND_FILTER)
			return ALLOW;
		count_unruled(TIER_UNPROGRAMMED, ACTION_DENY, INGRESS);
		return DENY;
	}
	parse(skb, &packet);
	if (pod->behind == BEHIND_FILTER)
		return note_datagram(pod, &packet, INGRESS);
	if (is_self(pod, &packet.source) || stays_on_link(packet.transport, packet.icmp_type))
		return ALLOW;
	if (!packet.is_whole) {
		count_unruled(TIER_DEFAULT, ACTION_DENY, INGRESS);
		return DENY;
	}
	flow.peer = packet.source;
	flow.port = packet.source_port;
	flow.transport = packet.transport;
	flow.icmp_type = packet.icmp_type;
	if (has_flows(flow.transport) && socket->type != SOCK_RAW) {
		result = judge_datagram(pod, socket, &flow, &packet.destination, packet.destination_port, OPENED_BY_PEER);
	} else if (flow.transport == IPPROTO_TCP && socket->type != SOCK_RAW && socket->state != BPF_TCP_LISTEN) {
		result = judge_stream(skb, pod, socket, &flow, &packet.destination, packet.destination_port);
	} else if (is_echo_reply(&packet)) {
		/* Nothing remembers an echo request: who may be asked may answer. */
		result = judge(pod, &flow, EGRESS);
	} else {
		/* The last segment of a handshake meets the listener, too: a policy may have changed since the first. */
		if (flow.transport == IPPROTO_TCP && socket->type != SOCK_RAW)
			flow.is_counted = !bpf_skb_load_bytes(skb, packet.transport_offset + 13, &flags, 1) &&
					  !(flags & TCP_SYN);
		result = judge_opened(pod, &flow, packet.destination_port, OPENED_BY_PEER);
	}
	if (result == ALLOW && !would_be_denied(&flow))
		return ALLOW;
	place.pod = pod->id;
	place.local_port = packet.destination_port;
	tell_of_packet(&flow, &place, &packet.destination);
	return result == ALLOW ? ALLOW : DENY;
}

/* What reaches the pod's sockets. */
SEC("cgroup_skb/ingress")
int egret_arrivals(struct __sk_buff *skb)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);

	if (pod->programmed && (has_no_rules(pod) || has_verdict(skb, pod, INGRESS)))
		return ALLOW;
	return judge_arrival(skb);
}

/* In every network namespace (drivers/net/loopback.c). */
#define LOOPBACK 1
/* The deepest level of a pod's cgroup that is looked at: `kubelet.slice/kubelet-kubepods.slice/…-burstable.slice/…` is 4. */
#define MAX_POD_LEVEL 7

/* Whether a socket below the pods' cgroup is that of a pod that is judged where it is. */
static __always_inline int is_of_known_pod(struct __sk_buff *skb)
{
	for (int level = 1; level <= MAX_POD_LEVEL; level++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(skb, level);

		if (!id)
			return 0;
		if (bpf_map_lookup_elem(&egret_known, &id))
			return 1;
	}
	return 0;
}

/* Whether a packet is that of a pod which is judged where it is, or of the node's network. Both stay as they are for the life of a
 * socket, so it remembers the answer until the guard knows fewer pods. */
static __attribute__((noinline)) int is_known(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	struct guard *guard = bpf_map_lookup_elem(&egret_guard, &zero);
	struct bpf_sock *socket = skb->sk;
	struct socket_state *state;
	__u32 generation;

	if (!guard)
		return 0;
	/* Before it is asked: what the guard forgets meanwhile makes the answer void. */
	generation = *(volatile __u32 *)&guard->generation;
	if (!is_of_known_pod(skb) && !(guard->node && bpf_get_netns_cookie(skb) == guard->node))
		return 0;
	if (socket) {
		state = bpf_sk_storage_get(&egret_sockets, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (state)
			state->passed = generation;
	}
	return 1;
}

/* Whether its socket remembers that it is known. */
static __always_inline int has_passed(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	struct guard *guard = bpf_map_lookup_elem(&egret_guard, &zero);
	struct bpf_sock *socket = skb->sk;
	struct socket_state *state;

	if (!guard || !guard->generation || !socket)
		return 0;
	state = bpf_sk_storage_get(&egret_sockets, socket, 0, 0);
	return state && state->passed == guard->generation;
}

static __always_inline int deny_unknown(const struct packet *packet, __u8 direction)
{
	struct flow flow = { .transport = packet->transport, .icmp_type = packet->icmp_type };
	struct place place = { .is_outgoing = direction == EGRESS };

	flow.denied_by = unruled(TIER_UNPROGRAMMED, ACTION_DENY, direction);
	count(&flow.denied_by);
	if (direction == EGRESS) {
		flow.peer = packet->destination;
		flow.port = packet->destination_port;
		place.local_port = packet->source_port;
	} else {
		flow.peer = packet->source;
		flow.port = packet->source_port;
		place.local_port = packet->destination_port;
	}
	tell_of_packet(&flow, &place, direction == EGRESS ? &packet->source : &packet->destination);
	return DENY;
}

static __attribute__((noinline)) int judge_unknown_departure(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;
	struct packet packet = {};

	parse(skb, &packet);
	if (socket)
		socket = bpf_sk_fullsock(socket);
	/* Answers the node, which asked (see below). */
	if (socket && packet.is_whole && packet.transport == IPPROTO_TCP && socket->type != SOCK_RAW &&
	    socket->state != BPF_TCP_SYN_SENT && bpf_map_lookup_elem(&egret_node, &packet.destination))
		return ALLOW;
	return deny_unknown(&packet, EGRESS);
}

/* What unknown pods send: these two are attached to the cgroup above all pods as long as unknown pods are closed. They
 * drop as netfilter does, and do not have connect(2) fail: a pod that becomes known meanwhile goes on. */
SEC("cgroup_skb/egress")
int egret_unknown_out(struct __sk_buff *skb)
{
	if (skb->ifindex == LOOPBACK || has_passed(skb) || is_known(skb))
		return ALLOW;
	return judge_unknown_departure(skb);
}

static __attribute__((noinline)) int judge_unknown_arrival(struct __sk_buff *skb)
{
	struct packet packet = {};

	parse(skb, &packet);
	/* What the node itself sends reaches unknown pods: the kubelet's probes. */
	if (bpf_map_lookup_elem(&egret_node, &packet.source))
		return ALLOW;
	return deny_unknown(&packet, INGRESS);
}

SEC("cgroup_skb/ingress")
int egret_unknown_in(struct __sk_buff *skb)
{
	if (skb->ifindex == LOOPBACK || has_passed(skb) || is_known(skb))
		return ALLOW;
	return judge_unknown_arrival(skb);
}

/* Cannot refuse anything (a reply of -1 changes nothing, whatever the operation): it counts, and notes that
 * a socket was accepted, whose packets are then no connections of the pod's. */
SEC("sockops")
int egret_established_count(struct bpf_sock_ops *ctx)
{
	const struct pod *pod = bpf_get_local_storage(&egret_pods, 0);
	struct bpf_sock *socket = ctx->sk;
	struct flow flow = {};
	__u32 accepted;
	__u64 *counter;

	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		accepted = 0;
	else if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accepted = 1;
	else
		return 1;
	counter = bpf_map_lookup_elem(&egret_established, &accepted);
	if (counter)
		__sync_fetch_and_add(counter, 1);
	if (!accepted || !socket)
		return 1;
	flow.peer = ctx->family == AF_INET6 ? v6(ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2],
						 ctx->remote_ip6[3]) :
					      v4(ctx->remote_ip4);
	flow.port = bpf_ntohl(ctx->remote_port);
	flow.transport = IPPROTO_TCP;
	remember(socket, pod, &flow, OPENED_BY_PEER);
	return 1;
}

char LICENSE[] SEC("license") = "Apache-2.0";
