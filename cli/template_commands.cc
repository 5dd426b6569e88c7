#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "cli/commands.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Align = Table::Align;

}  // namespace

int TemplateUp(Client& client, const Output& output, const v1::TemplateUpRequest& request) {
  absl::StatusOr<v1::Template> up = client.TemplateUp(request);
  if (!up.ok()) return output.Fail(up.status());
  output.Json(*up);
  if (!up->refusal().empty()) {
    output.Warning(
        absl::StrCat("it can't be forked, so clones of its image are made instead: ", up->refusal()));
  }
  output.Text(absl::StrCat("template ", up->name(), " of ", up->image(), " is up: PID ", up->pid(), ", in ",
                           FormatSeconds(up->seconds()), "\n"));
  return kDone;
}

int TemplateDown(Client& client, const Output& output, const v1::TemplateDownRequest& request) {
  absl::StatusOr<v1::TemplateDownResponse> down = client.TemplateDown(request);
  if (!down.ok()) return output.Fail(down.status());
  output.Json(*down);
  output.Text(absl::StrCat("template ", request.name(), " is down\n"));
  return kDone;
}

int ListTemplates(Client& client, const Output& output, const v1::ListTemplatesRequest& request) {
  absl::StatusOr<v1::ListTemplatesResponse> response = client.ListTemplates(request);
  if (!response.ok()) return output.Fail(response.status());
  output.Json(*response);
  Table table({{"NAME"},
               {"IMAGE"},
               {"PID", Align::kRight},
               {"STARTED"},
               {"MEMORY", Align::kRight},
               {"COPIES", Align::kRight},
               {"STARTS BY"}});
  const int64_t now = UnixNanos();
  for (const v1::Template& entry : response->templates()) {
    table.AddRow({entry.name(), entry.image(), absl::StrCat(entry.pid()), Age(entry.started_unix_ns(), now),
                  FormatBytes(entry.resident_bytes()), absl::StrCat(entry.copies()),
                  entry.refusal().empty() ? "fork" : absl::StrCat("clone (", entry.refusal(), ")")});
  }
  output.Text(table.ToString());
  return kDone;
}

}  // namespace rekindle::cli
