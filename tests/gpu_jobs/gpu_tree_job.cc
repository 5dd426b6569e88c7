// A process tree that uses GPUs: a parent without CUDA, and children that are vector jobs of their own. Ends
// with 1 as soon as one child fails; its children end with it.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr char kUsage[] =
    "usage: gpu_tree_job --children N --state-dir FOLDER [--spread GPUS] [-- option of gpu_vector_job ...]\n"
    "  child I (0..N-1) writes FOLDER/I, uses seed I + 1 and, of GPUS GPUs, number I modulo GPUS as its "
    "first\n";

struct Options {
  int children = 0, spread = 1;
  std::string state_folder;
  std::vector<std::string> of_children;
};

bool Parse(const std::vector<std::string>& words, Options* options) {
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; i += 2) {
    if (i + 1 == words.size()) return false;
    if (words[i] == "--children") {
      options->children = std::atoi(words[i + 1].c_str());
    } else if (words[i] == "--spread") {
      options->spread = std::atoi(words[i + 1].c_str());
    } else if (words[i] == "--state-dir") {
      options->state_folder = words[i + 1];
    } else {
      return false;
    }
  }
  if (i < words.size())
    options->of_children.assign(words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end());
  return options->children > 0 && options->spread > 0 && !options->state_folder.empty();
}

std::string VectorJobProgram() {
  char own[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own));
  const std::string path(own, length > 0 ? static_cast<size_t>(length) : 0);
  return path.substr(0, path.rfind('/') + 1) + "gpu_vector_job";
}

pid_t StartChild(const Options& options, int number) {
  std::vector<std::string> words = {VectorJobProgram(),
                                    "--state-file",
                                    options.state_folder + "/" + std::to_string(number),
                                    "--seed",
                                    std::to_string(number + 1),
                                    "--first-gpu",
                                    std::to_string(number % options.spread)};
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
  for (int i = 0; i < options.children; ++i) {
    int status = 0;
    const pid_t child = wait(&status);
    if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      std::fprintf(stderr, "child %d ended with status %#x\n", child, static_cast<unsigned>(status));
      return 1;
    }
  }
  return 0;
}
