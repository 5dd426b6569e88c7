#include "hook/packet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Whoever made the socket may have made it non-blocking. */
static int WaitFor(int channel, short events) {
  struct pollfd wanted = {.fd = channel, .events = events};
  return poll(&wanted, 1, -1) < 0 ? -1 : 0;
}

static void TakeDescriptors(struct msghdr* message, struct rekindle_packet* packet) {
  for (struct cmsghdr* part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(packet->descriptors, CMSG_DATA(part), count * sizeof(int)); /* the kernel sends one such part */
    packet->descriptor_count = count;
  }
}

int rekindle_packet_receive(int channel, struct rekindle_packet* packet) {
  union {
    struct cmsghdr aligned;
    char space[CMSG_SPACE(REKINDLE_MOST_DESCRIPTORS * sizeof(int))];
  } control;
  struct iovec data = {.iov_base = packet->text, .iov_len = sizeof(packet->text)};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof(control.space)};
  packet->length = 0;
  packet->descriptor_count = 0;
  ssize_t length;
  while ((length = recvmsg(channel, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EAGAIN || WaitFor(channel, POLLIN) < 0) return -1;
  }
  TakeDescriptors(&message, packet);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    rekindle_packet_close_descriptors(packet);
    errno = EMSGSIZE;
    return -1;
  }
  packet->length = (size_t)length;
  return 0;
}

void rekindle_packet_close_descriptors(struct rekindle_packet* packet) {
  for (size_t i = 0; i < packet->descriptor_count; ++i) {
    if (packet->descriptors[i] >= 0) close(packet->descriptors[i]);
  }
  packet->descriptor_count = 0;
}

int rekindle_packet_send(int channel, const char* text, size_t length) {
  while (send(channel, text, length, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || (WaitFor(channel, POLLOUT) < 0 && errno != EINTR)) return -1;
  }
  return 0;
}
