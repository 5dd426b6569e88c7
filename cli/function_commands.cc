#include "cli/function_commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/utf8.h"
#include "cli/json.h"
#include "cli/streamed_call.h"
#include "cli/table.h"
#include "functions/invocation.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

constexpr size_t kLongestModules = 48;
constexpr size_t kLongestProblem = 200;

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

// Whose they are, and the beginnings of their digests.
std::string LayersOf(const v1::DependencyImage& image) {
  constexpr size_t kShownOfDigest = 8;
  if (image.layers().empty()) return "-";
  std::vector<std::string> digests;
  for (const std::string& digest : image.layers()) digests.push_back(digest.substr(0, kShownOfDigest));
  return absl::StrCat("uid ", image.owner_uid(), ": ", absl::StrJoin(digests, ","));
}

// `Event` has `warnings`, too.
template <typename Event, typename Call>
absl::StatusOr<Event> ResultWithWarnings(Client& client, const Output& output, Interrupts& interrupts,
                                         Call call) {
  RK_ASSIGN_OR_RETURN(Event event,
                      StreamedResult<Event>("this", client, output, interrupts, std::move(call)));
  for (const std::string& warning : event.warnings()) output.Warning(warning);
  return event;
}

// JSON, @FILE, or - for standard input, which may have no end.
absl::StatusOr<std::string> ReadPayload(const std::string& source, bool async) {
  const size_t most = async ? functions::kLargestAsyncPayload : functions::kLargestPayload;
  absl::string_view file = source;
  std::string payload;
  if (source == "-" || absl::ConsumePrefix(&file, "@")) {
    RK_ASSIGN_OR_RETURN(const UniqueFd from,
                        OpenFile(source == "-" ? "/dev/stdin" : std::string(file), O_RDONLY));
    payload.resize(most + 1);
    size_t size = 0;
    while (size < payload.size()) {
      const ssize_t n = ::read(from.get(), payload.data() + size, payload.size() - size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", source));
      if (n == 0) break;
      size += static_cast<size_t>(n);
    }
    payload.resize(size);
  } else {
    payload = source;
  }
  if (payload.size() <= most) return payload;
  return absl::InvalidArgumentError(
      absl::StrCat("there are more than ", most, " bytes, the most that a function is given",
                   async ? " with --async" : "", ": let it read them from a file, or give it less"));
}

// Where an answer goes: found out before the function is invoked, and changed afterwards. A new file goes
// again if there is no answer.
class AnswerFile {
 public:
  explicit AnswerFile(std::string path) : path_(std::move(path)) {}
  ~AnswerFile() {
    if (is_new_) ::unlink(path_.c_str());
  }

  absl::Status Open() {
    constexpr int kFlags = O_WRONLY | O_NOCTTY;
    absl::StatusOr<UniqueFd> file = OpenFile(path_, kFlags | O_CREAT | O_EXCL, 0666);
    is_new_ = file.ok();
    if (absl::IsAlreadyExists(file.status())) file = OpenFile(path_, kFlags | O_CREAT, 0666);
    if (!file.ok()) {
      // To be told from a function that is not there.
      const bool missing = absl::IsNotFound(file.status());
      return absl::Status(missing ? absl::StatusCode::kFailedPrecondition : file.status().code(),
                          absl::StrCat(file.status().message(), "; nothing was invoked"));
    }
    file_ = *std::move(file);
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& content) {
    is_new_ = false;
    struct stat info;
    if (::fstat(file_.get(), &info) == 0 && S_ISREG(info.st_mode) && ::ftruncate(file_.get(), 0) != 0)
      return ErrnoStatus(errno, path_);
    return WriteFully(file_.get(), content.data(), content.size(), path_);
  }

 private:
  const std::string path_;
  UniqueFd file_;
  bool is_new_ = false;
};

// With `payload_base64` behind the payload: what is no text stays whole there, and is null in the other.
std::string AnswerJson(const v1::InvokeFunctionResponse& response) {
  using Json = nlohmann::ordered_json;
  const std::string& payload = response.payload();
  const bool is_text = ToUtf8(payload) == payload;
  Json json;
  const Json fields = Json::parse(ToJson(response));
  for (const auto& [name, value] : fields.items()) {
    json[name] = value;
    if (name != "payload") continue;
    if (!is_text) json[name] = nullptr;
    json["payload_base64"] = is_text ? Json() : Json(absl::Base64Escape(payload));
  }
  return json.dump();
}

int FailedFunction(const Output& output, const FunctionInvocation& invocation,
                   const v1::InvokeFunctionResponse& response) {
  if (!output.json()) {
    output.Note(Output::ErrorText(absl::UnknownError(
        absl::StrCat("function ", invocation.request.name(), " failed (", response.function_error(),
                     "): ", FunctionErrorText(response.payload())))));
  }
  return kFailed;
}

// Empty where nothing was refused.
std::string RefusalsTable(const v1::FunctionRefusals& refused) {
  const std::pair<const char*, uint64_t> rows[] = {
      {"connections: too many", refused.connections()},
      {"connections: too many of one user", refused.connections_of_one()},
      {"requests: too much at once", refused.bodies()},
      {"requests: too much of one user at once", refused.bodies_of_one()},
      {"requests: too large", refused.too_large()},
      {"asynchronous calls: too many wait", refused.events()},
      {"asynchronous calls: too many of one user wait", refused.events_of_one()},
  };
  Table table({{"REFUSED BEFORE ANY FUNCTION"}, {"COUNT", Align::kRight}});
  bool any = false;
  for (const auto& [why, count] : rows) {
    if (count == 0) continue;
    any = true;
    table.AddRow({why, absl::StrCat(count)});
  }
  return any ? table.ToString() : std::string();
}

}  // namespace

std::string FunctionErrorText(const std::string& payload) {
  const auto error = nlohmann::json::parse(payload, nullptr, /*allow_exceptions=*/false);
  const auto text_of = [&](const char* name) {
    return error.contains(name) && error[name].is_string() ? error[name].get<std::string>() : std::string();
  };
  if (!error.is_object() || (text_of("errorMessage").empty() && text_of("errorType").empty())) return payload;
  std::string text =
      absl::StrCat(text_of("errorType"), text_of("errorType").empty() ? "" : ": ", text_of("errorMessage"));
  // Python's has the places alone, Node.js's begins with the message.
  for (const char* name : {"stackTrace", "trace"}) {
    if (!error.contains(name) || !error[name].is_array()) continue;
    for (const auto& line : error[name]) {
      if (!line.is_string()) continue;
      const std::string place = line.get<std::string>();
      if (!absl::StartsWith(text, place)) absl::StrAppend(&text, "\n", absl::StripSuffix(place, "\n"));
    }
  }
  return text;
}

int DeployFunction(Client& client, const Output& output, Interrupts& interrupts,
                   const v1::DeployFunctionRequest& request) {
  auto deployed = ResultWithWarnings<v1::DeployEvent>(client, output, interrupts, [&](const auto& on_event) {
    return client.DeployFunction(request, on_event);
  });
  if (!deployed.ok()) return output.Fail(deployed.status());
  output.Json(*deployed);
  const v1::Function& function = deployed->result();
  if (deployed->unchanged()) {
    output.Text(absl::StrCat("function ", function.spec().name(), " was deployed already, just so: revision ",
                             function.revision(), "\n"));
    return kDone;
  }
  output.Text(absl::StrCat("function ", function.spec().name(), " is deployed: revision ",
                           function.revision(), ", ", FormatBytes(function.code_bytes()), " of code, in ",
                           FormatSeconds(deployed->seconds()), "\n"));
  if (!function.dependencies().empty() && !function.dependency_image().empty()) {
    output.Text(absl::StrCat("it starts from ", function.dependency_image(), ", with ",
                             absl::StrJoin(function.dependencies(), ", "), "\n"));
  }
  // Why it has no image has been told, with the reason.
  if (!function.problem().empty() && deployed->warnings().empty()) output.Warning(function.problem());
  return kDone;
}

int SetFunction(Client& client, const Output& output, Interrupts& interrupts,
                const v1::SetFunctionRequest& request) {
  auto set = ResultWithWarnings<v1::DeployEvent>(client, output, interrupts, [&](const auto& on_event) {
    return client.SetFunction(request, on_event);
  });
  if (!set.ok()) return output.Fail(set.status());
  const v1::Function& function = set->result();
  if (request.has_code() && function.spec().code() != request.code()) {
    return output.Fail(absl::UnimplementedError(
        "the daemon is of a version that takes no other code so, and has changed the settings alone: start "
        "the newer rekindled, or 'rekindle fn deploy --replace'"));
  }
  output.Json(*set);
  output.Text(absl::StrCat("function ", function.spec().name(),
                           set->unchanged() ? " was so already: revision " : " has these settings: revision ",
                           function.revision(), "\n"));
  if (!function.problem().empty() && set->warnings().empty()) output.Warning(function.problem());
  return kDone;
}

int InvokeFunction(Client& client, const Output& output, const FunctionInvocation& invocation) {
  absl::StatusOr<std::string> payload = ReadPayload(invocation.payload, invocation.request.async());
  if (!payload.ok()) return output.Fail(Annotate(payload.status(), "--payload"));
  v1::InvokeFunctionRequest request = invocation.request;
  request.set_payload(*std::move(payload));
  AnswerFile answer(invocation.output);
  if (!invocation.output.empty()) {
    if (absl::Status opened = answer.Open(); !opened.ok()) return output.Fail(Annotate(opened, "--output"));
  }
  absl::StatusOr<v1::InvokeFunctionResponse> response = client.InvokeFunction(request);
  if (!response.ok()) return output.Fail(response.status());
  if (output.json()) output.JsonLine(AnswerJson(*response));
  if (!output.json() && request.tail_log()) output.Note(response->log_tail());
  if (!invocation.output.empty()) {
    if (absl::Status written = answer.Write(response->payload()); !written.ok()) return output.Fail(written);
  }
  if (!response->function_error().empty()) return FailedFunction(output, invocation, *response);
  if (request.async()) {
    output.Text(absl::StrCat("queued as ", response->request_id(), "\n"));
  } else if (request.dry_run()) {
    output.Text(absl::StrCat("function ", request.name(), " can be invoked\n"));
  } else if (invocation.output.empty()) {
    output.Bytes(response->payload());
    if (!absl::EndsWith(response->payload(), "\n")) output.Text("\n");
  }
  return kDone;
}

int ListFunctions(Client& client, const Output& output, const v1::ListFunctionsRequest& request) {
  absl::StatusOr<v1::ListFunctionsResponse> response = client.ListFunctions(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table table({{"NAME"},
               {"RUNTIME"},
               {"REVISION", Align::kRight},
               {"DEPLOYED"},
               {"CODE", Align::kRight},
               {"MEMORY", Align::kRight},
               {"TIMEOUT", Align::kRight},
               {"BUSY", Align::kRight},
               {"IDLE", Align::kRight},
               {"STATE"}});
  const int64_t now = UnixNanos();
  for (const v1::Function& function : response->functions()) {
    const v1::FunctionSpec& spec = function.spec();
    table.AddRow(
        {spec.name(), OrDash(spec.runtime()), absl::StrCat(function.revision()),
         function.deployed_unix_ns() == 0 ? "-" : Age(function.deployed_unix_ns(), now),
         FormatBytes(function.code_bytes()), FormatBytes(spec.memory_bytes()),
         FormatSeconds(static_cast<double>(spec.timeout_ms()) / 1000),
         absl::StrCat(function.instances_busy()), absl::StrCat(function.instances_idle()),
         function.problem().empty()
             ? function.state()
             : absl::StrCat(function.state(), " (", Shown(function.problem(), kLongestProblem), ")")});
  }
  output.Text(table.ToString());
  return kDone;
}

int ShowFunctionLogs(Client& client, const Output& output, const v1::FunctionLogsRequest& request) {
  absl::Status status = client.FunctionLogs(request, [&](const v1::FunctionLogLine& line) {
    output.Json(line);
    output.Bytes(absl::StrCat(line.instance(), "  ", line.text(), "\n"));
  });
  return status.ok() ? static_cast<int>(kDone) : output.Fail(status);
}

int RemoveFunctions(Client& client, const Output& output, const FunctionRemoval& removal) {
  int result = kDone;
  for (const std::string& name : removal.names) {
    v1::RemoveFunctionRequest request;
    request.set_name(name);
    absl::StatusOr<v1::RemoveFunctionResponse> response = client.RemoveFunction(request);
    if (response.ok()) {
      output.Json(*response);
      output.Text(absl::StrCat("function ", name, " is removed\n"));
    } else if (const int failed = output.Fail(response.status()); result == kDone) {
      result = failed;
    }
  }
  return result;
}

int ShowFunctionStats(Client& client, const Output& output, const v1::FunctionStatsRequest& request) {
  absl::StatusOr<v1::FunctionStatsResponse> response = client.FunctionStats(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table functions({{"NAME"},
                   {"INVOCATIONS", Align::kRight},
                   {"ERRORS", Align::kRight},
                   {"TIMEOUTS", Align::kRight},
                   {"THROTTLES", Align::kRight},
                   {"MEDIAN", Align::kRight},
                   {"P99", Align::kRight},
                   {"BUSY", Align::kRight},
                   {"IDLE", Align::kRight},
                   {"QUEUED", Align::kRight},
                   {"MEMORY", Align::kRight},
                   {"OWN IMAGE", Align::kRight}});
  Table starts({{"NAME"},
                {"STARTED FROM"},
                {"STARTS", Align::kRight},
                {"MEDIAN", Align::kRight},
                {"P99", Align::kRight}});
  bool any_starts = false;
  for (const v1::FunctionStats& stats : response->functions()) {
    functions.AddRow({stats.name(), absl::StrCat(stats.invocations()), absl::StrCat(stats.errors()),
                      absl::StrCat(stats.timeouts()), absl::StrCat(stats.throttles()),
                      stats.invocations() == 0 ? "-" : FormatSeconds(stats.duration_median_seconds()),
                      stats.invocations() == 0 ? "-" : FormatSeconds(stats.duration_p99_seconds()),
                      absl::StrCat(stats.instances_busy()), absl::StrCat(stats.instances_idle()),
                      absl::StrCat(stats.queued()), FormatBytes(stats.memory_bytes()),
                      FormatBytes(stats.image_unique_bytes())});
    for (const v1::FunctionStarts& start : stats.starts()) {
      any_starts = true;
      starts.AddRow({stats.name(), start.level(), absl::StrCat(start.count()),
                     FormatSeconds(start.median_seconds()), FormatSeconds(start.p99_seconds())});
    }
  }
  output.Text(functions.ToString());
  if (any_starts) output.Text(absl::StrCat("\n", starts.ToString()));
  if (const std::string refused = RefusalsTable(response->refused()); !refused.empty()) {
    output.Text(absl::StrCat("\n", refused));
  }
  return kDone;
}

int BuildDependencies(Client& client, const Output& output, Interrupts& interrupts,
                      const v1::BuildDependenciesRequest& request) {
  auto built = ResultWithWarnings<v1::BuildDependenciesEvent>(
      client, output, interrupts,
      [&](const auto& on_event) { return client.BuildDependencies(request, on_event); });
  if (!built.ok()) return output.Fail(built.status());
  output.Json(*built);
  const v1::DependencyImage& image = built->result();
  output.Text(absl::StrCat(
      image.reference(),
      built->unchanged() ? " is there already: " : " is built: ", FormatBytes(image.resident_bytes()),
      " of memory, ", FormatBytes(image.unique_bytes()), " of its own on disk",
      built->unchanged() ? "" : absl::StrCat(", in ", FormatSeconds(image.build_seconds())), "\n"));
  return kDone;
}

int ListDependencies(Client& client, const Output& output, const v1::ListDependenciesRequest& request) {
  absl::StatusOr<v1::ListDependenciesResponse> response = client.ListDependencies(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table table({{"IMAGE"},
               {"RUNTIME"},
               {"BUILT"},
               {"MEMORY", Align::kRight},
               {"STORED", Align::kRight},
               {"OWN", Align::kRight},
               {"USED BY", Align::kRight},
               {"LAYERS"},
               {"MODULES"}});
  const int64_t now = UnixNanos();
  for (const v1::DependencyImage& image : response->images()) {
    table.AddRow({image.reference(), image.runtime(), Age(image.built_unix_ns(), now),
                  FormatBytes(image.resident_bytes()), FormatBytes(image.stored_bytes()),
                  FormatBytes(image.unique_bytes()),
                  absl::StrCat(static_cast<uint32_t>(image.used_by_size()) + image.used_by_others()),
                  LayersOf(image), Shown(absl::StrJoin(image.modules(), ","), kLongestModules)});
  }
  output.Text(table.ToString());
  return kDone;
}

int RemoveDependencies(Client& client, const Output& output, const DependenciesRemoval& removal) {
  int result = kDone;
  for (const std::string& image : removal.images) {
    v1::RemoveDependenciesRequest request;
    request.set_reference(image);
    absl::StatusOr<v1::RemoveDependenciesResponse> response = client.RemoveDependencies(request);
    if (response.ok()) {
      output.Json(*response);
      output.Text(absl::StrCat(image, " is removed; 'gc' frees its space\n"));
    } else if (const int failed = output.Fail(response.status()); result == kDone) {
      result = failed;
    }
  }
  return result;
}

}  // namespace rekindle::cli
