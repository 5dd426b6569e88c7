// The terminal while `rekindle top` has it: its alternate screen, without echo, and as it was afterwards.
#pragma once

#include <signal.h>
#include <termios.h>

#include <vector>

#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "cli/top_frame.h"

namespace rekindle::cli {

// One at a time. Thread-safe is Interrupt() alone.
class LiveScreen {
 public:
  // `output` is a terminal; `input` is where keys come from, or no terminal: then none do.
  LiveScreen(int input, int output);
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  TopSize size() const;
  void Show(const std::vector<TopLine>& lines);

  enum class Event {
    kTime,         // `timeout` is over, or a key asks for a refresh
    kResized,      // the terminal has another size, or was given back after Ctrl-Z
    kQuit,         // by key, or the terminal is gone
    kInterrupted,  // by Interrupt()
  };
  Event Wait(absl::Duration timeout);
  void Interrupt();

 private:
  void Enter();
  void Leave();
  // Gives the terminal back and stops this process, as Ctrl-Z does.
  void Suspend();
  Event OnKeys();

  const int input_, output_;
  bool has_keys_ = false;  // the input is a terminal, in the foreground
  termios before_ = {};
  struct sigaction before_resize_ = {};
  UniqueFd interrupted_, resized_;  // eventfds
};

}  // namespace rekindle::cli
