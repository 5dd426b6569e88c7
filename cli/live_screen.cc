#include "cli/live_screen.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle::cli {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // the alternate screen, no cursor
constexpr char kLeave[] = "\x1b[0m\x1b[?25h\x1b[?1049l";
constexpr char kCtrlC = 3, kCtrlD = 4, kCtrlZ = 26;

// For the handler of SIGWINCH; -1 while there is no screen.
volatile sig_atomic_t resize_descriptor = -1;

void Raise(int descriptor) {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(descriptor, &one, sizeof(one));
}

void OnResize(int) {
  const int error = errno;
  if (resize_descriptor >= 0) Raise(resize_descriptor);
  errno = error;
}

bool Lower(int descriptor) {
  uint64_t count = 0;
  return ::read(descriptor, &count, sizeof(count)) == static_cast<ssize_t>(sizeof(count));
}

void Write(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the terminal is gone: poll() tells
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

LiveScreen::LiveScreen(int input, int output) : input_(input), output_(output) {
  interrupted_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  resized_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  resize_descriptor = resized_.get();
  struct sigaction action = {};
  action.sa_handler = OnResize;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGWINCH, &action, &before_resize_);
  Enter();
}

LiveScreen::~LiveScreen() {
  Leave();
  ::sigaction(SIGWINCH, &before_resize_, nullptr);
  resize_descriptor = -1;
}

void LiveScreen::Enter() {
  has_keys_ = ::tcgetattr(input_, &before_) == 0;
  if (has_keys_) {
    termios raw = before_;
    // Ctrl-C and Ctrl-Z come as keys, so that the terminal is given back first.
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(input_, TCSADRAIN, &raw);
  }
  Write(output_, kEnter);
}

void LiveScreen::Leave() {
  Write(output_, kLeave);
  if (has_keys_) ::tcsetattr(input_, TCSADRAIN, &before_);
}

void LiveScreen::Suspend() {
  Leave();
  ::kill(0, SIGTSTP);
  Enter();
}

TopSize LiveScreen::size() const {
  winsize size = {};
  if (::ioctl(output_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

void LiveScreen::Show(const std::vector<TopLine>& lines) {
  // Over what is there, so that nothing flickers. No line end behind the last line: it would scroll.
  std::string text = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    const bool title = lines[i].style == TopLine::Style::kTitle,
               trouble = lines[i].style == TopLine::Style::kTrouble;
    absl::StrAppend(&text,
                    title     ? "\x1b[7m"
                    : trouble ? "\x1b[1m"
                              : "",
                    lines[i].text, title || trouble ? "\x1b[0m" : "", "\x1b[K");
  }
  Write(output_, text + "\x1b[J");
}

LiveScreen::Event LiveScreen::Wait(absl::Duration timeout) {
  pollfd entries[] = {
      {interrupted_.get(), POLLIN, 0}, {resized_.get(), POLLIN, 0}, {has_keys_ ? input_ : -1, POLLIN, 0}};
  const int64_t milliseconds = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 1 << 30);
  const int ready = ::poll(entries, 3, static_cast<int>(milliseconds));
  if (ready <= 0)
    return ready < 0 && errno == EINTR && Lower(resized_.get()) ? Event::kResized : Event::kTime;
  if (entries[0].revents != 0) return Event::kInterrupted;
  if (entries[1].revents != 0) {
    Lower(resized_.get());
    return Event::kResized;
  }
  return OnKeys();
}

LiveScreen::Event LiveScreen::OnKeys() {
  char keys[64];
  const ssize_t count = ::read(input_, keys, sizeof(keys));
  if (count < 0 && errno == EINTR) return Event::kTime;
  if (count <= 0) return Event::kQuit;
  for (const char key : absl::string_view(keys, static_cast<size_t>(count))) {
    if (key == 'q' || key == 'Q' || key == kCtrlC || key == kCtrlD) return Event::kQuit;
    if (key == kCtrlZ) {
      Suspend();
      return Event::kResized;
    }
  }
  return Event::kTime;
}

void LiveScreen::Interrupt() { Raise(interrupted_.get()); }

}  // namespace rekindle::cli
