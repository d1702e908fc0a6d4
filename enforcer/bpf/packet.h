/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Reads the headers of a packet. */
#ifndef EGRET_PACKET_H
#define EGRET_PACKET_H

#include "maps.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

#define IPPROTO_ICMP 1
#define IPPROTO_SCTP 132
#define IPPROTO_ICMPV6 58

/* A packet, as its headers say. */
struct packet {
	struct address source;
	struct address destination;
	__u32 transport_offset;
	__u16 source_port;      /* host order; 0 where there are none */
	__u16 destination_port; /* host order */
	__u8 transport;
	__u8 is_whole; /* 0: headers or ports are not all here, so nothing can be said */
	__u8 icmp_type;
};

/* Headers without options or extensions, and the ports of TCP or UDP behind them. */
struct plain_v4 {
	__u8 version_and_length;
	__u8 unused[5];
	__be16 fragment;
	__u8 lifetime;
	__u8 transport;
	__u8 checksum[2];
	__u32 source;
	__u32 destination;
	__be16 source_port;
	__be16 destination_port;
};

#define IP_MORE_FRAGMENTS_AND_OFFSET 0x3fff

struct plain_v6 {
	__u8 version;
	__u8 unused[5];
	__u8 transport;
	__u8 hops;
	__u32 source[4];
	__u32 destination[4];
	__be16 source_port;
	__be16 destination_port;
};

static __always_inline int parse_v4(struct __sk_buff *skb, struct packet *packet)
{
	__u8 header[20];

	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)))
		return 0;
	packet->source.family = packet->destination.family = FAMILY_V4;
	__builtin_memcpy(&packet->source.words[0], header + 12, 4);
	__builtin_memcpy(&packet->destination.words[0], header + 16, 4);
	packet->transport = header[9];
	packet->transport_offset = (header[0] & 0x0f) * 4;
	/* Not the first fragment: no ports. */
	return !((header[6] & 0x1f) || header[7]);
}

#define MAX_EXTENSIONS 8
#define NEXT_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_DESTINATION 60

static __always_inline int parse_v6(struct __sk_buff *skb, struct packet *packet)
{
	__u8 header[40], extension[8];
	__u32 offset = sizeof(header);
	__u8 next;

	if (bpf_skb_load_bytes(skb, 0, header, sizeof(header)))
		return 0;
	packet->source.family = packet->destination.family = FAMILY_V6;
	__builtin_memcpy(packet->source.words, header + 8, 16);
	__builtin_memcpy(packet->destination.words, header + 24, 16);
	next = header[6];
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next != NEXT_HOP && next != NEXT_ROUTING && next != NEXT_FRAGMENT && next != NEXT_DESTINATION) {
			packet->transport = next;
			packet->transport_offset = offset;
			return 1;
		}
		if (bpf_skb_load_bytes(skb, offset, extension, sizeof(extension)))
			return 0;
		/* The last destination is another one than the header's. */
		if (next == NEXT_ROUTING && extension[3])
			return 0;
		if (next == NEXT_FRAGMENT && (extension[2] || (extension[3] & 0xf8)))
			return 0;
		offset += next == NEXT_FRAGMENT ? 8 : ((__u32)extension[1] + 1) * 8;
		next = extension[0];
	}
	return 0;
}

/* `packet` is zero before. */
GLOBAL int parse(struct __sk_buff *skb, struct packet *packet)
{
	__u16 ports[2];

	if (!packet)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		packet->is_whole = parse_v4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		packet->is_whole = parse_v6(skb, packet);
	if (!packet->is_whole)
		return 0;
	if (packet->transport == IPPROTO_TCP || packet->transport == IPPROTO_UDP ||
	    packet->transport == IPPROTO_SCTP) {
		packet->is_whole = !bpf_skb_load_bytes(skb, packet->transport_offset, ports, sizeof(ports));
		packet->source_port = bpf_ntohs(ports[0]);
		packet->destination_port = bpf_ntohs(ports[1]);
	} else if (packet->transport == IPPROTO_ICMPV6 || packet->transport == IPPROTO_ICMP) {
		packet->is_whole = !bpf_skb_load_bytes(skb, packet->transport_offset, &packet->icmp_type, 1);
	}
	return packet->is_whole;
}

/* Neighbour discovery and multicast listener discovery: no router passes them on (RFC 4861, RFC 3810). */
static __always_inline int stays_on_link(__u8 transport, __u8 type)
{
	return transport == IPPROTO_ICMPV6 && ((type >= 130 && type <= 137) || type == 143);
}

#endif
