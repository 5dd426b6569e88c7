#include "restore/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/companion_program.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "base/status_json.h"
#include "criu/enter_mounts.h"
#include "criu/kernel_facts.h"
#include "criu/restore_preload.h"
#include "dedup_store/block_io.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

constexpr char kSandboxProgram[] = "rekindle-sandbox";
constexpr char kFolderPrefix[] = "i-";
constexpr char kMakingLock[] = "making.lock";  // shared by those who make a sandbox

absl::StatusOr<Packet> Converse(int socket, const std::string& request, const std::vector<int>& descriptors,
                                absl::string_view who) {
  absl::Status sent = SendPacket(socket, request, descriptors);
  if (!sent.ok()) return Annotate(sent, who);
  auto answer = ReceivePacket(socket);
  if (!answer.ok()) return Annotate(answer.status(), who);
  if (!answer->has_value()) return absl::UnavailableError(absl::StrCat(who, " has died"));
  try {
    const Json json = Json::parse((*answer)->bytes);
    if (json.contains("error")) return StatusOf(json);
    if (json.contains("event")) {
      return absl::UnavailableError(
          absl::StrCat(who, " has ended: ", json.value("why", std::string("its job did"))));
    }
  } catch (const Json::exception& e) {
    return absl::InternalError(absl::StrCat(who, " answered nonsense: ", e.what()));
  }
  return *std::move(*answer);
}

SandboxEnd ParseEnd(const std::string& text) {
  SandboxEnd end;
  try {
    const Json json = Json::parse(text);
    end.exit.code = json.at("code");
    end.exit.signal = json.at("signal");
    end.why = json.at("why");
    end.damaged = json.value("damaged", false);
    end.refused = json.value("refused", false);
  } catch (const Json::exception&) {
    end.exit.signal = SIGKILL;
    end.why = "its sandbox was killed";
  }
  return end;
}

const char* NameOf(Network network) {
  switch (network) {
    case Network::kHost:
      return "host";
    case Network::kNone:
      return "none";
    case Network::kOwn:
      return "own";
  }
  return "host";
}

}  // namespace

absl::Status DamageOf(const SandboxEnd& end, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", end.why);
  if (end.refused) return WithMessage(store::ReadError(EIO, "", 0, 0), message);
  return absl::DataLossError(message);
}

Sandbox& Sandbox::operator=(Sandbox&& other) noexcept {
  if (this != &other) {
    End();
    id_ = std::move(other.id_);
    directory_ = std::move(other.directory_);
    until_stay_ = other.until_stay_;
    known_ = std::move(other.known_);
    init_pid_ = other.init_pid_;
    control_ = std::move(other.control_);
    keeper_ = std::move(other.keeper_);
    init_ = std::move(other.init_);
  }
  return *this;
}

Sandbox::~Sandbox() { End(); }

void Sandbox::End() {
  EndSandbox(init_, directory_);
  init_.Reset();
}

void EndSandbox(const UniqueFd& init, const std::string& directory) {
  if (!init.valid()) return;
  KillAndAwaitExit(init.get());
  RemoveTree(directory).IgnoreError();
}

absl::StatusOr<Packet> Sandbox::Ask(const std::string& request, const std::vector<int>& descriptors) {
  return Converse(control_.get(), request, descriptors, absl::StrCat("sandbox ", id_));
}

absl::StatusOr<Sandbox::Criu> Sandbox::StartCriu(const std::vector<std::string>& argv,
                                                 const std::vector<std::pair<int, int>>& descriptors,
                                                 const std::vector<int>& groups) {
  std::vector<int> ours, numbers;
  for (const auto& [own, number] : descriptors) {
    ours.push_back(own);
    numbers.push_back(number);
  }
  ours.insert(ours.end(), groups.begin(), groups.end());
  RK_ASSIGN_OR_RETURN(std::vector<std::string> variables,
                      criu::RestoreVariables(absl::StrCat(directory_, "/", criu::kBoundsFile)));
  // Not by a mount on the file in /run: that goes when another CRIU replaces this.
  if (!known_.empty()) variables.push_back(absl::StrCat(ENTERED_KNOWN, "=", known_));
  const Json request = {{"do", "criu"},
                        {"argv", argv},
                        {"descriptors", numbers},
                        {"groups", groups.size()},
                        {"environment", variables}};
  RK_ASSIGN_OR_RETURN(Packet answer, Ask(request.dump(), ours));
  if (answer.descriptors.size() != 2) return absl::InternalError("a sandbox started CRIU without its socket");
  return Criu{std::move(answer.descriptors[0]), std::move(answer.descriptors[1])};
}

absl::Status Sandbox::Set(const std::string& host_name,
                          const std::vector<std::pair<std::string, std::string>>& binds,
                          const OwnTemporary& temporary) {
  return Ask(Json{{"do", "set"},
                  {"host_name", host_name},
                  {"binds", binds},
                  {"temporary", temporary.bytes},
                  {"shared_memory", temporary.shared_memory},
                  {"keep", temporary.keep},
                  {"read_only", temporary.read_only}}
                 .dump())
      .status();
}

absl::Status Sandbox::Hide(const std::string& folder) {
  return Ask(Json{{"do", "hide"}, {"folder", folder}}.dump()).status();
}

absl::StatusOr<std::vector<UniqueFd>> Sandbox::OpenProcesses(const std::vector<pid_t>& pids) {
  std::vector<UniqueFd> opened;
  for (size_t i = 0; i < pids.size(); i += kMaxPacketDescriptors) {
    const std::vector<pid_t> some(
        pids.begin() + static_cast<ptrdiff_t>(i),
        pids.begin() + static_cast<ptrdiff_t>(std::min(pids.size(), i + kMaxPacketDescriptors)));
    RK_ASSIGN_OR_RETURN(Packet answer, Ask(Json{{"do", "processes"}, {"pids", some}}.dump()));
    if (answer.descriptors.size() != some.size()) {
      return absl::InternalError("a sandbox did not tell its processes");
    }
    for (UniqueFd& fd : answer.descriptors) opened.push_back(std::move(fd));
  }
  return opened;
}

absl::Status Sandbox::Watch(pid_t root) {
  RK_ASSIGN_OR_RETURN(const Packet answer,
                      Ask(Json{{"do", "watch"}, {"pid", root}, {"until_stay", true}}.dump()));
  // That of a template which an older version has made knows nothing of it.
  until_stay_ = Json::parse(answer.bytes).value("until_stay", false);
  return absl::OkStatus();
}

absl::Status Sandbox::SetNextPid(pid_t pid) {
  return Ask(Json{{"do", "next pid"}, {"pid", pid}}.dump()).status();
}

absl::StatusOr<UniqueFd> Sandbox::AnotherControl() {
  RK_ASSIGN_OR_RETURN(auto sockets, PacketSocketPair());
  RK_RETURN_IF_ERROR(Ask(Json{{"do", "also"}}.dump(), {sockets.second.get()}).status());
  return std::move(sockets.first);
}

SandboxEnd Sandbox::EndWithin(absl::Duration patience) {
  return ReadEndWithin(control_.get(), directory_, patience);
}

Sandbox::Released Sandbox::Release() {
  return {std::move(control_), std::move(init_),      init_pid_,
          std::move(id_),      std::move(directory_), until_stay_};
}

void LetStay(int control) { SendPacket(control, Json{{"do", "stay"}}.dump()).IgnoreError(); }

SandboxEnd ReadEndWithin(int control, const std::string& directory, absl::Duration patience) {
  pollfd entry{control, POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return {};
  return ReadEnd(control, directory);
}

SandboxEnd ReadEnd(int control, const std::string& directory) {
  auto packet = ReceivePacket(control);
  if (packet.ok() && packet->has_value()) return ParseEnd((*packet)->bytes);
  auto written = ReadFile(absl::StrCat(directory, "/", kStatusFile));
  return ParseEnd(written.ok() ? *written : "");
}

absl::StatusOr<std::unique_ptr<SandboxFactory>> SandboxFactory::Start(const std::string& directory,
                                                                      const std::vector<std::string>& criu) {
  RK_RETURN_IF_ERROR(MakeDirectories(directory));
  std::unique_ptr<SandboxFactory> factory(new SandboxFactory());
  factory->directory_ = directory;
  {
    absl::MutexLock lock(&factory->mutex_);
    RK_RETURN_IF_ERROR(factory->StartProgram());
  }
  factory->RemoveLeftovers();
  factory->LearnKernel(criu);
  return factory;
}

absl::Status SandboxFactory::StartProgram() {
  RK_ASSIGN_OR_RETURN(std::string program, FindCompanionProgram(kSandboxProgram));
  RK_ASSIGN_OR_RETURN(auto sockets, PacketSocketPair());
  SubprocessOptions options;
  options.argv = {program};
  options.descriptors = {{sockets.second.get(), kFactorySocket}};
  options.new_session = true;
  RK_ASSIGN_OR_RETURN(process_, Subprocess::Start(options));
  socket_ = std::move(sockets.first);
  return absl::OkStatus();
}

void SandboxFactory::RemoveLeftovers() {
  // Somebody just makes one: it has no lock yet.
  auto alone = LockFile(absl::StrCat(directory_, "/", kMakingLock), LOCK_EX | LOCK_NB);
  std::error_code error;
  if (!alone.ok()) return;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    const std::string path = entry.path().string(), id = entry.path().filename().string();
    if (!absl::StartsWith(id, kFolderPrefix)) continue;
    auto folder = OpenFile(path, O_RDONLY | O_DIRECTORY);
    if (!folder.ok() || ::flock(folder->get(), LOCK_EX | LOCK_NB) != 0) continue;
    auto written = ReadFile(absl::StrCat(path, "/", kStatusFile));
    const SandboxEnd end = ParseEnd(written.ok() ? *written : "");
    if (!end.why.empty()) {
      Log(LogLevel::kWarning, absl::StrCat("clone ", id, " was ended, while nobody listened: ", end.why));
    }
    RemoveTree(path).IgnoreError();
  }
}

// Probing costs CRIU more than a restore.
void SandboxFactory::LearnKernel(const std::vector<std::string>& criu) {
  auto known = criu::LearnKernel(criu, directory_);
  if (known.ok()) kdat_ = *std::move(known);
}

absl::StatusOr<Packet> SandboxFactory::Ask(const std::string& request, const std::vector<int>& descriptors) {
  absl::MutexLock lock(&mutex_);
  auto answer = Converse(socket_.get(), request, descriptors, kSandboxProgram);
  if (!absl::IsUnavailable(answer.status())) return answer;
  // It was killed. What it has made lives on without it.
  RK_RETURN_IF_ERROR(StartProgram());
  return Converse(socket_.get(), request, descriptors, kSandboxProgram);
}

absl::StatusOr<Sandbox> SandboxFactory::Make(Network network) {
  return Sandbox::Make([this](const std::string& request,
                              const std::vector<int>& descriptors) { return Ask(request, descriptors); },
                       directory_, kdat_, network);
}

absl::StatusOr<Sandbox> MakeInside(int control, const std::string& directory, Network network) {
  return Sandbox::Make(
      [control](const std::string& request, const std::vector<int>& descriptors) {
        return Converse(control, request, descriptors, "the template's sandbox");
      },
      directory, "", network);
}

absl::StatusOr<Sandbox> Sandbox::Make(const Asker& ask, const std::string& folders, const std::string& kdat,
                                      Network network) {
  Sandbox sandbox;
  RK_ASSIGN_OR_RETURN(UniqueFd making, LockFile(absl::StrCat(folders, "/", kMakingLock), LOCK_SH));
  RK_ASSIGN_OR_RETURN(TemporaryDirectory directory, TemporaryDirectory::Make(folders, kFolderPrefix));
  RK_ASSIGN_OR_RETURN(auto control, PacketSocketPair());
  RK_ASSIGN_OR_RETURN(auto keeper, PacketSocketPair());
  const Json request = {{"do", "make"}, {"network", NameOf(network)}, {"directory", directory.path()}};
  RK_ASSIGN_OR_RETURN(Packet made, ask(request.dump(), {control.second.get(), keeper.second.get()}));
  if (made.descriptors.size() != 1) return absl::InternalError("a sandbox was made without its init");
  sandbox.init_ = std::move(made.descriptors[0]);
  sandbox.known_ = kdat;
  sandbox.directory_ = directory.Release();
  sandbox.id_ = sandbox.directory_.substr(sandbox.directory_.rfind('/') + 1);
  sandbox.control_ = std::move(control.first);
  sandbox.keeper_ = std::move(keeper.first);
  control.second.Reset();
  keeper.second.Reset();
  // The init tells when its mounts are made.
  auto ready = ReceivePacket(sandbox.control_.get());
  if (!ready.ok()) return ready.status();
  if (!ready->has_value()) return absl::InternalError("the init of a sandbox died at its start");
  try {
    const Json json = Json::parse((*ready)->bytes);
    if (json.contains("error")) return absl::InternalError(json.at("error").get<std::string>());
  } catch (const Json::exception& e) {
    return absl::InternalError(e.what());
  }
  RK_ASSIGN_OR_RETURN(sandbox.init_pid_, PidOf(sandbox.init_.get()));
  return sandbox;
}

absl::StatusOr<pid_t> PidOf(int pidfd) {
  RK_ASSIGN_OR_RETURN(std::string text, ReadFile(absl::StrCat("/proc/self/fdinfo/", pidfd)));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int pid = 0;
    if (absl::ConsumePrefix(&line, "Pid:") && absl::SimpleAtoi(line, &pid) && pid > 0) return pid;
  }
  return absl::NotFoundError("a process of a sandbox has ended");
}

}  // namespace rekindle::restore
