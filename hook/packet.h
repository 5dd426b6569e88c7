/* One message of the control channel, with the descriptors that came with it. */
#ifndef REKINDLE_HOOK_PACKET_H_
#define REKINDLE_HOOK_PACKET_H_

#include <stddef.h>

enum { REKINDLE_MOST_DESCRIPTORS = 253 }; /* SCM_MAX_FD of the kernel */

struct rekindle_packet {
  size_t length; /* 0: the end of the channel */
  size_t descriptor_count;
  int descriptors[REKINDLE_MOST_DESCRIPTORS]; /* close-on-exec */
  char text[65536];
};

/* Waits for a message. 0; or -1 with errno: EINTR, EMSGSIZE (it was too long and is dropped), or recvmsg()'s.
 */
int rekindle_packet_receive(int channel, struct rekindle_packet* packet);
void rekindle_packet_close_descriptors(struct rekindle_packet* packet);

/* 0, or -1 with errno. Waits where the socket is full. */
int rekindle_packet_send(int channel, const char* text, size_t length);

#endif /* REKINDLE_HOOK_PACKET_H_ */
