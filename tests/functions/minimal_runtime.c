// A custom runtime of AWS Lambda's public documentation alone ("Using the Lambda runtime API for custom
// runtimes"), with nothing but libc. Its function answers with its event; an event with the word `fail` is an
// error, one with `stream` is answered in chunks, one with `reconnect` over a new connection.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { kMostHeaders = 64 << 10 };

static int connection = -1;

static void die(const char* what) {
  perror(what);
  exit(1);
}

static void connect_to_api(void) {
  const char* path = getenv("REKINDLE_RUNTIME_SOCKET");
  const char* api = getenv("AWS_LAMBDA_RUNTIME_API");
  if (connection >= 0) close(connection);
  if (path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr*)&address, sizeof address) != 0) die(path);
    return;
  }
  char host[256];
  const char* colon = api ? strrchr(api, ':') : NULL;
  if (!colon || (size_t)(colon - api) >= sizeof host) {
    fprintf(stderr, "AWS_LAMBDA_RUNTIME_API is not HOST:PORT\n");
    exit(1);
  }
  memcpy(host, api, (size_t)(colon - api));
  host[colon - api] = 0;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
  if (getaddrinfo(host, colon + 1, &hints, &found) != 0) die(host);
  connection = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  if (connect(connection, found->ai_addr, found->ai_addrlen) != 0) die(api);
  // An answer's head and body are sent one after the other.
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  freeaddrinfo(found);
}

static void send_all(const char* data, size_t size) {
  while (size > 0) {
    ssize_t sent = send(connection, data, size, MSG_NOSIGNAL);
    if (sent < 0) die("sending to the Runtime API");
    data += sent;
    size -= (size_t)sent;
  }
}

__attribute__((format(printf, 1, 2))) static void send_text(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  int size = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  send_all(text, (size_t)size);
}

// The value of a header in `head`, or NULL.
static char* header(char* head, const char* name, char* value, size_t size) {
  for (char* line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
    line += 2;
    if (strncasecmp(line, name, strlen(name)) != 0 || line[strlen(name)] != ':') continue;
    char* start = line + strlen(name) + 1;
    start += strspn(start, " ");
    snprintf(value, size, "%.*s", (int)strcspn(start, "\r"), start);
    return value;
  }
  return NULL;
}

struct answer {
  int status;
  char id[64];
  char* body;  // ends with a zero byte
  size_t size;
};

static struct answer receive(void) {
  static char head[kMostHeaders + 1];
  size_t have = 0;
  char* end = NULL;
  while (!end) {
    ssize_t got = recv(connection, head + have, kMostHeaders - have, 0);
    if (got < 0) die("reading from the Runtime API");
    if (got == 0) exit(0);
    have += (size_t)got;
    head[have] = 0;
    end = strstr(head, "\r\n\r\n");
  }
  end += 4;
  char value[64];
  struct answer answer = {.status = atoi(head + strlen("HTTP/1.1 "))};
  size_t ahead = have - (size_t)(end - head);
  answer.size = header(head, "Content-Length", value, sizeof value) ? strtoul(value, NULL, 10) : 0;
  header(head, "Lambda-Runtime-Aws-Request-Id", answer.id, sizeof answer.id);
  answer.body = calloc(1, answer.size + 1);
  if (!answer.body) die("memory");
  memcpy(answer.body, end, ahead);
  while (ahead < answer.size) {
    ssize_t got = recv(connection, answer.body + ahead, answer.size - ahead, 0);
    if (got <= 0) die("reading from the Runtime API");
    ahead += (size_t)got;
  }
  return answer;
}

static void post(const struct answer* invocation, const char* outcome, const char* headers,
                 const char* body) {
  send_text(
      "POST /2018-06-01/runtime/invocation/%s/%s HTTP/1.1\r\nHost: api\r\n%sContent-Length: %zu\r\n\r\n",
      invocation->id, outcome, headers, strlen(body));
  send_all(body, strlen(body));
}

static void stream(const struct answer* invocation) {
  send_text(
      "POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: "
      "chunked\r\n"
      "Lambda-Runtime-Function-Response-Mode: streaming\r\nTrailer: "
      "Lambda-Runtime-Function-Error-Type\r\n\r\n",
      invocation->id);
  for (size_t at = 0; at < invocation->size; at += 7) {
    size_t size = invocation->size - at < 7 ? invocation->size - at : 7;
    send_text("%zx\r\n", size);
    send_all(invocation->body + at, size);
    send_all("\r\n", 2);
  }
  send_text("0\r\n\r\n");
}

int main(void) {
  connect_to_api();
  for (;;) {
    send_text("GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: api\r\n\r\n");
    struct answer invocation = receive();
    if (invocation.status != 200) {
      fprintf(stderr, "invocation/next: %d %s\n", invocation.status, invocation.body);
      return 1;
    }
    if (strstr(invocation.body, "reconnect")) connect_to_api();
    if (strstr(invocation.body, "fail")) {
      post(&invocation, "error", "Lambda-Runtime-Function-Error-Type: Custom.Failure\r\n",
           "{\"errorMessage\":\"as it was told\",\"errorType\":\"Custom.Failure\"}");
    } else if (strstr(invocation.body, "stream")) {
      stream(&invocation);
    } else {
      post(&invocation, "response", "Content-Type: application/json\r\n", invocation.body);
    }
    struct answer taken = receive();
    if (taken.status != 202) fprintf(stderr, "the answer was refused: %d %s\n", taken.status, taken.body);
    free(taken.body);
    free(invocation.body);
  }
}
