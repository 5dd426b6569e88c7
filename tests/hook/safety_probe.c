/* Brings itself into one state, named by its argument, and prints why it can't be copied by fork ("safe": it
 * can). */
#include <err.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hook/rekindle_hook.h"

static void* Sleep(void* nothing) {
  for (;;) pause();
  return nothing;
}

static int TemporaryFile(void) {
  char name[] = "/tmp/rekindle-probe-XXXXXX";
  int fd = mkstemp(name);
  if (fd < 0) err(2, "%s", name);
  unlink(name);
  return fd;
}

/* Another descriptor of this program's own file, which is there and stays. */
static int OwnProgram(void) {
  int fd = open("/proc/self/exe", O_RDONLY);
  if (fd < 0) err(2, "/proc/self/exe");
  return fd;
}

static void MapShared(int fd, int protection, int flags) {
  if (mmap(NULL, 4096, protection, MAP_SHARED | flags, fd, 0) == MAP_FAILED) err(2, "mmap");
}

static int ShareFile(int protection) {
  int fd = TemporaryFile();
  if (ftruncate(fd, 4096) < 0) err(2, "ftruncate");
  MapShared(fd, protection, 0);
  close(fd);
  return 0;
}

static int Socket(int family, int type) {
  int fd = socket(family, type, 0);
  if (fd < 0) err(2, "socket");
  return fd;
}

static int ListeningSocket(void) {
  int fd = Socket(AF_INET, SOCK_STREAM);
  if (listen(fd, 1) < 0) err(2, "listen");
  return fd;
}

static int RecordLock(int fd) {
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
  return fcntl(fd, F_SETLK, &lock);
}

static int StartTimer(int which) {
  struct itimerval in_an_hour = {.it_value = {.tv_sec = 3600}};
  return setitimer((__itimer_which_t)which, &in_an_hour, NULL);
}

static int PosixTimer(void) {
  timer_t timer;
  struct sigevent nothing = {.sigev_notify = SIGEV_NONE};
  return timer_create(CLOCK_MONOTONIC, &nothing, &timer);
}

static int MemoryFile(void) {
  int fd = memfd_create("probe", 0);
  return fd < 0 ? -1 : ftruncate(fd, 4096);
}

static int SharedSegment(void) {
  int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  void* at = shmat(id, NULL, 0);
  shmctl(id, IPC_RMID, NULL);
  return at == (void*)-1 ? -1 : 0;
}

static int MessageQueue(void) {
  char name[32];
  snprintf(name, sizeof(name), "/rekindle-probe-%d", getpid());
  mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, NULL);
  mq_unlink(name);
  return queue == (mqd_t)-1 ? -1 : 0;
}

static int NewSignalFd(void) {
  sigset_t none;
  sigemptyset(&none);
  return signalfd(-1, &none, 0);
}

static int Pipe(void) {
  int ends[2];
  return pipe(ends);
}

static int IoUring(void) {
  struct io_uring_params parameters = {0};
  return (int)syscall(SYS_io_uring_setup, 1, &parameters);
}

/* Stands for the driver's device: what is asked for is its path. */
static int NvidiaDevice(void) {
  if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
      mount("none", "/dev", "tmpfs", 0, NULL) < 0) {
    return -1;
  }
  return open("/dev/nvidia0", O_RDWR | O_CREAT, 0600);
}

static int Thread(void) {
  pthread_t thread;
  return pthread_create(&thread, NULL, Sleep, NULL);
}

/* A thread, and a mapped file with such a library's name: threads do not tell who started them. */
static int OpenBlas(void) {
  char folder[] = "/tmp/rekindle-probe-XXXXXX", name[64];
  if (mkdtemp(folder) == NULL) return -1;
  snprintf(name, sizeof(name), "%s/libopenblas.so.0", folder);
  int fd = open(name, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
    return -1;
  close(fd);
  unlink(name);
  rmdir(folder);
  return Thread();
}

static pid_t child;

static int Child(void) {
  child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  return child;
}

static int Terminal(int fd) {
  int terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY);
  if (terminal < 0 || unlockpt(terminal) < 0) return -1;
  int peer = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  if (peer < 0 || close(terminal) < 0) return -1;
  if (fd == STDIN_FILENO) return dup2(peer, fd) < 0 ? -1 : close(peer);
  return peer;
}

static int PipeAsInput(void) {
  int ends[2];
  if (pipe(ends) < 0 || dup2(ends[0], STDIN_FILENO) < 0) return -1;
  close(ends[0]);
  return close(ends[1]);
}

static int Harmless(void) {
  static const char* const kFiles[] = {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
                                       "/dev/full", "/",         "/etc/passwd"};
  for (size_t i = 0; i < sizeof(kFiles) / sizeof(kFiles[0]); ++i) {
    if (open(kFiles[i], O_RDONLY) < 0) return -1;
  }
  MapShared(OwnProgram(), PROT_READ, 0);
  return 0;
}

static int Enter(const char* state) {
#define STATE(name, action) \
  if (strcmp(state, name) == 0) return (action)
  STATE("harmless", Harmless());
  STATE("deleted-readonly", ShareFile(PROT_READ));
  STATE("terminal-0", Terminal(0));
  STATE("pipe-0", PipeAsInput());
  STATE("thread", Thread());
  STATE("openblas", OpenBlas());
  STATE("child", Child());
  STATE("alarm", StartTimer(ITIMER_REAL));
  STATE("itimer-virtual", StartTimer(ITIMER_VIRTUAL));
  STATE("itimer-prof", StartTimer(ITIMER_PROF));
  STATE("posix-timer", PosixTimer());
  STATE("listening", ListeningSocket());
  STATE("unix-socket", Socket(AF_UNIX, SOCK_DGRAM));
  STATE("eventfd", eventfd(0, 0));
  STATE("epoll", epoll_create1(0));
  STATE("timerfd", timerfd_create(CLOCK_MONOTONIC, 0));
  STATE("signalfd", NewSignalFd());
  STATE("inotify", inotify_init());
  STATE("pidfd", (int)syscall(SYS_pidfd_open, getpid(), 0));
  STATE("io_uring", IoUring());
  STATE("pipe", Pipe());
  STATE("terminal", Terminal(-1));
  STATE("namespace", open("/proc/self/ns/net", O_RDONLY));
  STATE("message-queue", MessageQueue());
  STATE("memfd", MemoryFile());
  STATE("deleted-file", TemporaryFile());
  STATE("shared-anonymous", (MapShared(-1, PROT_READ | PROT_WRITE, MAP_ANONYMOUS), 0));
  STATE("shared-file", ShareFile(PROT_READ | PROT_WRITE));
  STATE("shared-segment", SharedSegment());
  STATE("flock", flock(OwnProgram(), LOCK_SH));
  STATE("record-lock", RecordLock(OwnProgram()));
  STATE("nvidia", NvidiaDevice());
#undef STATE
  errx(2, "no such state: %s", state);
}

int main(int argc, char** argv) {
  if (argc != 2) errx(2, "which state?");
  if (Enter(argv[1]) < 0) err(2, "%s", argv[1]);
  char why[1024] = "safe";
  rekindle_unsafe_to_fork(why, sizeof(why));
  puts(why);
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  return 0;
}
