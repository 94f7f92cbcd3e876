"""What the live page looks like: one style sheet for light and dark, and the two cells that tables draw themselves."""

from __future__ import annotations

SHEET = """
:root { --line: #e2e6ec; --soft: #f5f7fa; --card: #ffffff; --ink: #1b2430; --faint: #66717f; }
.body--dark { --line: #2c343f; --soft: #12161c; --card: #1a2028; --ink: #e6eaf0; --faint: #94a0b0; }
body { background: var(--soft); color: var(--ink); font-variant-numeric: tabular-nums; }
.nicegui-content { padding: 0; gap: 0; display: block; }
.bar { display: flex; align-items: center; gap: 14px; padding: 10px 20px; background: var(--card);
  border-bottom: 1px solid var(--line); }
.bar .brand { font-size: 18px; font-weight: 650; letter-spacing: -.01em; }
.bar .what { color: var(--faint); font-size: 13px; overflow-wrap: anywhere; }
.bar .right { margin-left: auto; display: flex; gap: 8px; align-items: center; }
.dot { width: 9px; height: 9px; border-radius: 50%; background: #10b981; }
.dot.red { background: #ef4444; }
.board { display: grid; grid-template-columns: minmax(0, 1fr) 390px; gap: 14px; padding: 14px 20px;
  max-width: 1720px; margin: 0 auto; align-items: start; }
.left { display: flex; flex-direction: column; gap: 14px; min-width: 0; }
.pair { display: grid; grid-template-columns: 3fr 2fr; gap: 14px; }
@media (max-width: 1080px) { .board, .pair { grid-template-columns: minmax(0, 1fr); } }
.panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px;
  min-width: 0; position: relative; }
.panel .spans { position: absolute; top: 10px; right: 14px; }
.panel .h2 { font-size: 14px; font-weight: 600; line-height: 1.5; }
.panel .note { color: var(--faint); font-size: 12px; margin: 0 0 6px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; }
.tile .name { color: var(--faint); font-size: 12px; }
.tile .value { font-size: 22px; font-weight: 600; line-height: 1.35; white-space: nowrap; }
.tile .more { color: var(--faint); font-size: 12px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.meter { height: 5px; border-radius: 3px; background: var(--line); overflow: hidden; margin-top: 6px; }
.meter > div { height: 100%; background: #3b82f6; transition: width .3s; }
.tight .q-table { font-size: 12.5px; }
.tight .q-table th { font-size: 11.5px; color: var(--faint); font-weight: 500; }
.tight .q-table th, .tight .q-table td { padding: 4px 8px; height: auto; border-color: var(--line); }
.tight .q-table__card, .tight.q-table__card { background: transparent; box-shadow: none; color: inherit; }
.answers .q-table tbody tr, .sessions .q-table tbody tr { cursor: pointer; }
.who { display: flex; align-items: center; gap: 8px; max-width: 250px; }
.who i { width: 10px; height: 10px; border-radius: 3px; flex: none; }
.who b { font-weight: 600; }
.who span { color: var(--faint); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.who.chosen b { text-decoration: underline; text-underline-offset: 3px; }
.state { padding: 1px 8px; border-radius: 9px; font-size: 11.5px; background: var(--line); }
.state.running { background: #10b98133; color: #0d9467; } .state.waiting { background: #f59e0b33; color: #b4740a; }
.state.failed, .state.refused { background: #ef444433; color: #dc3535; }
.body--dark .state.running { color: #34d399; } .body--dark .state.waiting { color: #fbbf24; }
.chain { display: flex; gap: 2px; align-items: center; }
.chain i { height: 14px; border-radius: 2px; background: #3b82f6; min-width: 3px; }
.chain i.keep { background: #10b981; } .chain i.end { background: var(--faint); }
.chain i.open { background: repeating-linear-gradient(135deg, #3b82f6 0 3px, #3b82f655 3px 6px); }
.chain small { color: var(--faint); margin-left: 6px; }
.facts { max-height: 360px; overflow: auto; } .facts .q-table td { white-space: normal; }
.payload { font: 11.5px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  color: var(--faint);
  max-height: 360px; overflow: auto; }
.chat { position: sticky; top: 14px; height: calc(100vh - 92px); min-height: 460px; display: flex;
  flex-direction: column; gap: 8px; }
/* Reversed, so that it stays at its end while that grows. */
.chat .log { flex: 1; min-height: 0; overflow-y: auto; display: flex; flex-direction: column-reverse; }
.chat .entries { display: flex; flex-direction: column; gap: 10px; min-height: 100%; }
.chat .hint { color: var(--faint); font-size: 13px; margin: auto; text-align: center; max-width: 260px; }
.said { max-width: 94%; border-radius: 10px; padding: 8px 11px; font-size: 14px; line-height: 1.5; }
.said .text { white-space: pre-wrap; overflow-wrap: anywhere; display: inline; }
.said.user { align-self: flex-end; background: #3b82f6; color: white; }
.said.model { align-self: flex-start; background: var(--soft); border: 1px solid var(--line); }
.said.error { align-self: stretch; background: #ef44441f; border: 1px solid #ef444466; }
.said .foot { color: var(--faint); font-size: 11.5px; margin-top: 4px; }
.controls { display: flex; gap: 8px; align-items: center; }
.controls .control { flex: 1 1 0; min-width: 0; }
.controls .q-select { flex-grow: 1.4; }
.controls .send { min-width: 44px; height: 40px; }
"""

WHO = """
<q-td :props="props"><div class="who" :class="{chosen: props.row.chosen}" :title="props.row.id">
<i :style="{background: props.row.colour}"></i><b>{{ props.row.answer }}</b><span>{{ props.row.question }}</span>
</div></q-td>
"""

SESSION = """
<q-td :props="props"><div class="who" :class="{chosen: props.row.chosen}">
<i :style="{background: props.row.colour}"></i><b>{{ props.row.session }}</b></div></q-td>
"""

STATE = """
<q-td :props="props"><span class="state" :class="props.row.state">{{ props.row.state }}</span>
<small style="margin-left: 6px; color: var(--faint)">{{ props.row.age || '' }}</small></q-td>
"""

CHAIN = """
<q-td :props="props"><div class="chain">
<i v-for="part in props.row.chain.split(' ').filter(part => part)" :class="part.split(':')[1]" :title="part"
  :style="{width: Math.min(30, part.split(':')[0] / 8) + 'px'}"></i>
<small>{{ props.row.flushed }} flushed</small></div></q-td>
"""
