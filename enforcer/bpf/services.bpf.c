// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/* Judges what pods send to Services where the node has translated the address: at FORWARD and at LOCAL_IN of netfilter,
 * from the conntrack entry of the packet. The programs at the pod's socket see the address of the Service alone, and leave
 * it to this one.
 *
 * It reads structures of the kernel. The loader relocates their fields by the kernel's BTF, and puts the kernel's own
 * functions where KFUNC_... stand (src/backend/ebpf/translation.rs). */
#include "judge.h"

#define AF_INET 2
#define AF_INET6 10

#define NF_DROP 0
#define NF_ACCEPT 1

/* enum ip_conntrack_info. */
#define IP_CT_RELATED 1
#define IP_CT_RELATED_REPLY 4
#define CT_INFO_MASK 7ULL
/* enum ip_conntrack_status. */
#define IPS_CONFIRMED (1 << 3)
#define IPS_DST_NAT (1 << 5)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff {
	unsigned long _nfct;
};

union nf_inet_addr {
	__u32 all[4];
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
	__u16 l3num;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
		__u8 protonum;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
};

#pragma clang attribute pop

struct bpf_nf_ctx {
	const void *state;
	struct sk_buff *skb;
};

/* The loader puts the number of the type nf_conn there. It is no relocation: the kernel has a type nf_conn___init as well, and aya
 * takes that for another candidate. */
#define TYPE_OF_CONNECTION 0x7e000001

/* Numbers that no helper has: functions of the kernel, in the order in which the loader names them. */
static const void *(*const kernel_pointer)(__u64 address, __u32 type) = (void *)0x10000;   /* bpf_rdonly_cast */
static int (*const packet_of)(struct sk_buff *skb, __u64 flags, struct bpf_dynptr *packet) = (void *)0x10001; /* bpf_dynptr_from_skb */
static const void *(*const octets_of)(const struct bpf_dynptr *packet, __u64 offset, void *buffer, __u64 size) = (void *)0x10002; /* bpf_dynptr_slice */

static __always_inline struct address address_of(__u16 family, __u32 a, __u32 b, __u32 c, __u32 d)
{
	return family == AF_INET ? v4(a) : v6(a, b, c, d);
}

#define ADDRESS(tuple, end)                                                                                     \
	address_of((tuple)->src.l3num, (tuple)->end.u3.all[0], (tuple)->end.u3.all[1], (tuple)->end.u3.all[2], \
		   (tuple)->end.u3.all[3])

#define HEADER_V4 20
#define HEADER_V6 40

static __always_inline int has_ports(__u8 transport)
{
	return transport == IPPROTO_TCP || transport == IPPROTO_UDP || transport == IPPROTO_SCTP;
}

/* A connection as its first packet said it, and as the server sees it. */
struct connection {
	struct address source;
	struct address asked; /* the destination of the first packet */
	struct address seen;  /* the source behind the translation */
	__u16 source_port;    /* host order, as the others */
	__u16 asked_port;
	__u16 seen_port;
	__u8 is_rewritten; /* its destination */
	__u8 is_known;	   /* its first packet has passed */
};

/* Tells what was denied, or would be; and what a pod had open is ended. By itself, so that the way through the rules has room on
 * the stack. */
GLOBAL int report_client(const struct pod *pod, const struct connection *connection, const struct flow *flow)
{
	struct place place = { .is_outgoing = 1 };
	struct flow socket = {};

	if (!pod || !connection || !flow)
		return 0;
	place.pod = pod->id;
	place.local_port = connection->source_port;
	tell_of_packet(flow, &place, &connection->source);
	if (would_be_denied(flow) || !flow->was_allowed)
		return 0;
	socket.peer = connection->asked;
	socket.port = connection->asked_port;
	socket.transport = flow->transport;
	report_denied(pod, &socket, &connection->source, connection->source_port);
	return 0;
}

GLOBAL int report_server(const struct pod *pod, const struct connection *connection, const struct flow *flow,
			 const struct address *server)
{
	struct place place = {};
	struct flow told, socket = {};

	if (!pod || !connection || !flow || !server)
		return 0;
	place.pod = pod->id;
	place.local_port = flow->port;
	told = *flow;
	told.port = connection->source_port;
	tell_of_packet(&told, &place, server);
	if (would_be_denied(flow) || !flow->was_allowed)
		return 0;
	socket.peer = connection->seen;
	socket.port = connection->seen_port;
	socket.transport = flow->transport;
	report_denied(pod, &socket, server, flow->port);
	return 0;
}

/* By the rules of the pod that asks; or of nobody, where a client outside asks for a Service. */
GLOBAL int judge_client(const struct connection *connection, struct flow *flow)
{
	const struct pod *pod;
	int result;

	if (!connection || !flow)
		return DENY;
	pod = bpf_map_lookup_elem(&egret_addressed, &connection->source);
	if (!pod) {
		const struct address outside = {};

		/* The node itself asks, and pods on its network. */
		if (!connection->is_rewritten || bpf_map_lookup_elem(&egret_node, &connection->source))
			return ALLOW;
		pod = bpf_map_lookup_elem(&egret_addressed, &outside);
		if (!pod)
			return ALLOW;
	}
	flow->is_translated = 1;
	/* Of clients outside each packet is judged: nothing is remembered of them. */
	flow->was_allowed = connection->is_known && pod->id;
	flow->is_counted = connection->is_known;
	flow->is_itself = same(&flow->peer, &connection->source);
	result = judge(pod, flow, EGRESS);
	if (result == DENY || would_be_denied(flow))
		report_client(pod, connection, flow);
	return result;
}

/* By the rules of the pod to which it leads: behind this hook the source may become the node's. What keeps its source is
 * judged, and counted, at the pod's socket as well. */
GLOBAL int judge_server(const struct connection *connection, struct flow *flow)
{
	struct address server;
	const struct pod *pod;
	int result;

	if (!connection || !flow)
		return DENY;
	server = flow->peer;
	pod = bpf_map_lookup_elem(&egret_addressed, &server);
	if (!pod || bpf_map_lookup_elem(&egret_node, &connection->source))
		return ALLOW;
	flow->peer = connection->source;
	flow->was_allowed = connection->is_known;
	flow->is_counted = 1;
	flow->is_itself = same(&server, &connection->source);
	result = judge(pod, flow, INGRESS);
	if (result == DENY)
		report_server(pod, connection, flow, &server);
	return result;
}

/* Without an entry of conntrack nothing is translated: the headers say where it goes. Returns 0 where they are not there. */
static __always_inline int read_addresses(struct bpf_dynptr *packet, struct connection *connection, struct flow *flow)
{
	__u8 buffer[HEADER_V6];
	const __u8 *header = octets_of(packet, 0, buffer, HEADER_V4);

	if (!header)
		return 0;
	if (header[0] >> 4 == 4) {
		connection->source.family = connection->asked.family = FAMILY_V4;
		flow->transport = header[9];
		__builtin_memcpy(connection->source.words, header + 12, 4);
		__builtin_memcpy(connection->asked.words, header + 16, 4);
		return (header[0] & 0x0f) * 4;
	}
	header = octets_of(packet, 0, buffer, HEADER_V6);
	if (!header)
		return 0;
	connection->source.family = connection->asked.family = FAMILY_V6;
	flow->transport = header[6];
	__builtin_memcpy(connection->source.words, header + 8, 16);
	__builtin_memcpy(connection->asked.words, header + 24, 16);
	return HEADER_V6;
}

/* What is behind the addresses. Later fragments of what is not tracked have no ports, and match rules about none. Returns 0
 * where a header is not there. */
static __always_inline int read_ports(struct bpf_dynptr *packet, __u32 offset, struct connection *connection, struct flow *flow)
{
	__u16 ports[2];

	flow->peer = connection->asked;
	if (flow->transport == IPPROTO_ICMPV6 && bpf_dynptr_read(&flow->icmp_type, 1, packet, offset, 0))
		return 0;
	if (has_ports(flow->transport) && !bpf_dynptr_read(ports, sizeof(ports), packet, offset, 0)) {
		connection->source_port = bpf_ntohs(ports[0]);
		flow->port = connection->asked_port = bpf_ntohs(ports[1]);
	}
	return 1;
}

static __always_inline void read_entry(const struct nf_conn *entry, struct connection *connection, struct flow *flow)
{
	const struct nf_conntrack_tuple *asked = &entry->tuplehash[0].tuple, *answered = &entry->tuplehash[1].tuple;

	connection->is_rewritten = !!(entry->status & IPS_DST_NAT);
	connection->is_known = !!(entry->status & IPS_CONFIRMED);
	connection->source = ADDRESS(asked, src);
	connection->asked = ADDRESS(asked, dst);
	flow->transport = asked->dst.protonum;
	flow->peer = ADDRESS(answered, src);
	connection->seen = ADDRESS(answered, dst);
	if (has_ports(flow->transport)) {
		connection->source_port = bpf_ntohs(asked->src.u.all);
		connection->asked_port = bpf_ntohs(asked->dst.u.all);
		connection->seen_port = bpf_ntohs(answered->dst.u.all);
		flow->port = bpf_ntohs(answered->src.u.all);
	}
}

SEC("classifier")
int egret_services(struct bpf_nf_ctx *ctx)
{
	__u64 entry = ctx->skb->_nfct, info = entry & CT_INFO_MASK;
	struct connection connection = {};
	struct bpf_dynptr packet;
	struct flow flow = {};
	__u32 offset = 0;

	entry &= ~CT_INFO_MASK;
	/* Errors about a connection. */
	if (entry && (info == IP_CT_RELATED || info == IP_CT_RELATED_REPLY))
		return NF_ACCEPT;
	if (entry) {
		read_entry(kernel_pointer(entry, TYPE_OF_CONNECTION), &connection, &flow);
	} else {
		if (packet_of(ctx->skb, 0, &packet))
			return NF_DROP;
		offset = read_addresses(&packet, &connection, &flow);
		if (!offset)
			return NF_DROP;
	}
	/* Judged at the socket, if it is a pod's. */
	if (!connection.is_rewritten && !may_be_translated(&connection.asked))
		return NF_ACCEPT;
	if (!entry && !read_ports(&packet, offset, &connection, &flow))
		return NF_DROP;
	if (stays_on_link(flow.transport, flow.icmp_type))
		return NF_ACCEPT;
	if (judge_client(&connection, &flow) != ALLOW)
		return NF_DROP;
	return !connection.is_rewritten || judge_server(&connection, &flow) == ALLOW ? NF_ACCEPT : NF_DROP;
}

/* Functions of the kernel are for programs that may be under its licence. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";
