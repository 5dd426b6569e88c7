// gpu_sim_ctl: tells a running gpu_sim_server which driver calls are to fail, and asks it what happened.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/gpu_sim/wire.h"

namespace {

constexpr char kUsage[] =
    "usage: gpu_sim_ctl --socket PATH COMMAND\n"
    "  inject CALL [--pid TARGET] [--nth N] FAULT [--when before|during|after]\n"
    "      CALL: lock checkpoint restore unlock state restore-tid init context memalloc memfree launch\n"
    "      FAULT: --fail CODE [--then-failed] | --delay-ms N | --hang [--answers-late | --until-cleared]\n"
    "             | --kill-target | --kill-caller | --wrong-success (the state changes, device data is lost) "
    "| --no-effect (nothing "
    "changes)\n"
    "  clear                 forget all faults\n"
    "  stats                 JSON: memory per GPU and per process, number of calls\n"
    "  calls                 JSON: the calls of the checkpoint API in order\n"
    "  set NAME VALUE        one of the server's options: driver-version, context-bytes, mig, lost-gpu, ...\n"
    "  reserve UUID BYTES    device memory that somebody else uses\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace rekindle::gpu_sim;
  if (argc < 4 || std::string(argv[1]) != "--socket") {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::string words;
  for (int i = 3; i < argc; ++i) words += std::string(argv[i]) + "\n";
  const int socket = ConnectTo(argv[2]);
  Reply reply;
  std::string answer;
  if (socket < 0 || !Ask(socket, {.op = Op::kControl}, words, &reply, &answer, nullptr)) {
    std::fprintf(stderr, "gpu_sim_ctl: no server answers on %s\n", argv[2]);
    return 1;
  }
  close(socket);
  if (reply.result != 0) {
    std::fprintf(stderr, "gpu_sim_ctl: %s\n", answer.c_str());
    return 2;
  }
  std::fputs(answer.c_str(), stdout);
  return 0;
}
