// A process tree that uses GPUs: a parent without CUDA, and children that are vector jobs of their own. Ends
// with 1 as soon as one child fails; its children end with it.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu_jobs/state_file.h"

namespace {

constexpr char kUsage[] =
    "usage: gpu_tree_job --children N --state-file FILE [--spread GPUS] [option of gpu_vector_job ...]\n"
    "  FILE tells the lowest step of the children, and the sum of their digests. Child I (0..N-1) writes "
    "FILE.I,\n"
    "  uses seed I + 1 and, of GPUS GPUs (1), number I modulo GPUS as its first.\n";
constexpr int kReportMilliseconds = 5;

struct Options {
  int children = 0, spread = 1;
  std::string state_file;
  std::vector<std::string> of_children;
};

bool Parse(const std::vector<std::string>& words, Options* options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const bool last = i + 1 == words.size();
    if (words[i] == "--children" && !last) {
      options->children = std::atoi(words[++i].c_str());
    } else if (words[i] == "--spread" && !last) {
      options->spread = std::atoi(words[++i].c_str());
    } else if (words[i] == "--state-file" && !last) {
      options->state_file = words[++i];
    } else {
      options->of_children.push_back(words[i]);
    }
  }
  return options->children > 0 && options->spread > 0 && !options->state_file.empty();
}

std::string StateFileOf(const Options& options, int child) {
  return options.state_file + "." + std::to_string(child);
}

std::string VectorJobProgram() {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own));
  const std::string path(own, length > 0 ? static_cast<size_t>(length) : 0);
  return path.substr(0, path.rfind('/') + 1) + "gpu_vector_job";
}

pid_t StartChild(const Options& options, int number) {
  std::vector<std::string> words = {
      VectorJobProgram(),         "--state-file", StateFileOf(options, number),           "--seed",
      std::to_string(number + 1), "--first-gpu",  std::to_string(number % options.spread)};
  words.insert(words.end(), options.of_children.begin(), options.of_children.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  execv(argv[0], argv.data());
  std::perror(argv[0]);
  _exit(1);
}

// False as soon as a child has failed; *left is how many still run.
bool ReapChildren(int* left) {
  int status = 0;
  for (;;) {
    const pid_t child = waitpid(-1, &status, WNOHANG);
    if (child <= 0) return true;
    --*left;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    std::fprintf(stderr, "child %d ended with status %#x\n", child, static_cast<unsigned>(status));
    return false;
  }
}

void Report(const Options& options) {
  uint64_t lowest = ~uint64_t{0}, sum = 0;
  for (int i = 0; i < options.children; ++i) {
    uint64_t step = 0, digest = 0;
    if (!rekindle::gpu_jobs::ReadState(StateFileOf(options, i), &step, &digest)) return;
    lowest = std::min(lowest, step);
    sum += digest;
  }
  rekindle::gpu_jobs::WriteState(options.state_file, lowest, sum, "");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(std::vector<std::string>(argv + 1, argv + argc), &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  for (int i = 0; i < options.children; ++i) {
    if (StartChild(options, i) < 0) {
      std::perror("fork");
      return 1;
    }
  }
  for (int left = options.children; left > 0;) {
    if (!ReapChildren(&left)) return 1;
    Report(options);
    rekindle::gpu_jobs::Pause(kReportMilliseconds);
  }
  return 0;
}
