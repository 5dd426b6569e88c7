// What a terminal stops a command with (Ctrl-Z, output from the background where `stty tostop` is set), for a
// command that may take images itself: stopped in the middle of that it would leave the job frozen.
#pragma once

#include "cli/signal_watch.h"

namespace rekindle::cli {

// As long as it exists, SIGTSTP stops this process as soon as no job stands still because of it, and what is
// written from the background is written. Signals that it was started to ignore stay ignored. Make it before
// any other thread: threads made later inherit that the signals wait for it.
class TerminalStops {
 public:
  TerminalStops();
  ~TerminalStops();

 private:
  SignalWatch watch_;
};

}  // namespace rekindle::cli
