import { useState } from "preact/hooks";
import { link } from "../app/router";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { TextField } from "../ui/fields";
import { Glyph } from "../ui/icons";
import { Menu } from "../ui/Menu";
import { type RunFilters, textOf } from "./query";
import { removeView, saveView, type View, viewOf, views } from "./views";

/** Saved queries: to open, to add the current one, to remove. */
export function ViewsMenu({ filters }: { filters: RunFilters }) {
  const [isSaving, setSaving] = useState(false);
  const all: View[] = [
    { name: t("views.failed"), filters: { status: "FAILED", since: "24h" } },
    { name: t("views.running"), filters: { status: "RUNNING" } },
    ...views.value,
  ];
  const current = viewOf(all, filters);
  return (
    <>
      <Menu icon="bookmark" label={current?.name ?? t("views.title")} isLocal>
        {all.map((view) => (
          <div key={view.name} class="menu-row">
            <a href={link(["runs"], { ...view.filters })} aria-current={view === current ? "true" : undefined}>
              {view.name}
            </a>
            {views.value.includes(view) && (
              <button
                type="button"
                class="icon-button"
                aria-label={t("views.remove", { name: view.name })}
                onClick={() => removeView(view.name)}
              >
                <Glyph name="trash" />
              </button>
            )}
          </div>
        ))}
        {textOf(filters) !== "" && !current && (
          <button type="button" onClick={() => setSaving(true)}>
            <Glyph name="plus" />
            {t("views.save")}
          </button>
        )}
      </Menu>
      {isSaving && <SaveDialog filters={filters} onClose={() => setSaving(false)} />}
    </>
  );
}

function SaveDialog({ filters, onClose }: { filters: RunFilters; onClose: () => void }) {
  const [name, setName] = useState("");
  return (
    <FormDialog
      title={t("views.save")}
      verb={t("action.save")}
      isBusy={name.trim() === ""}
      onSubmit={() => {
        saveView({ name: name.trim(), filters });
        onClose();
      }}
      onClose={onClose}
    >
      <p class="dim">
        <code>{textOf(filters)}</code>
      </p>
      <TextField
        label={t("views.name")}
        hint={t("views.hint")}
        value={name}
        maxLength={60}
        onChange={setName}
        autoFocus
      />
    </FormDialog>
  );
}
